"""The built-in model engine: our scheduler over OpenVINO's paged attention on the CPU.

From a model directory to logits: `models/checkpoint.py` reads tensors, `compression.py` makes them smaller, `graph.py`
builds the decoder from them, `compiled.py` keeps it on disk and compiles it, `executor.py` runs steps of the scheduler
on it, `engine.py` puts it all together.

Nothing here calls home: importing OpenVINO tells Google Analytics of it and leaves files in the home directory, unless
its telemetry library is missing. So it is made to be missing, before anything of OpenVINO is imported.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # as documented for `import`
