"""The built-in model engine: our scheduler over OpenVINO's paged attention on the CPU.

From a model directory to logits: `models/checkpoint.py` reads tensors, `compression.py` makes them smaller, `graph.py`
builds the decoder from them, `compiled.py` keeps it on disk and compiles it, `executor.py` runs steps of the scheduler
on it, `engine.py` puts it all together.
"""
