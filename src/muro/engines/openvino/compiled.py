"""From a model directory to a compiled model, by way of a graph stored on disk.

Reading, dequantising and compressing a checkpoint takes several times as long as compiling it, so the graph with its
compressed weights is built once and stored; later starts map it into memory, which also keeps the process small.
The stored form is the stateful decoder: paged attention carries facts that OpenVINO's files lose, and for the same
reason its cache of compiled models cannot hold it. The transformation takes a third of a second.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
from pathlib import Path
from typing import Any

import openvino as ov

from muro.config import engine_cpus
from muro.engine.interface import Report
from muro.engines.openvino import graph
from muro.engines.openvino.options import OpenVINOOptions
from muro.engines.openvino.paged import to_paged
from muro.errors import ConfigError
from muro.models.atomic import publish
from muro.models.checkpoint import open_checkpoint
from muro.models.config import READY_GRAPH, ModelConfig, ModelDir


def compile_model(model: ModelDir, options: OpenVINOOptions, root: Path, report: Report) -> ov.CompiledModel:
    """The model, turned to paged attention and compiled for the CPU.

    Args:
        model: a directory with a checkpoint, or with a ready-made OpenVINO decoder.
        options: number formats and threads.
        root: stored graphs go to `root/openvino`.
        report: told what is going on.

    Raises:
        ConfigError: the checkpoint is damaged or incomplete, or nothing can be stored.
        MissingExtraError: a library that reads the checkpoint is not installed.
    """
    path = stored_graph(model, options.weights, root, report)
    report("compiling", 40)
    try:
        decoder = ov.Core().read_model(path)
    except RuntimeError as error:
        # Among them graphs that were stored with paged attention, which OpenVINO itself cannot read again.
        raise ConfigError(
            f"OpenVINO {ov.__version__} cannot read {path}; a decoder must be stored in its stateful form: {error}"
        ) from error
    return compile_decoder(decoder, model.config, options)


def compile_decoder(decoder: ov.Model, config: ModelConfig, options: OpenVINOOptions) -> ov.CompiledModel:
    """A stateful decoder, turned to paged attention and compiled for the CPU."""
    to_paged(decoder, config.windows)
    return ov.Core().compile_model(decoder, "CPU", _properties(options))


def stored_graph(model: ModelDir, weights: str, root: Path, report: Report) -> Path:
    """The stateful decoder of a model as a file, built if it is not there yet; see `compile_model`."""
    config = model.config.decoder
    if config is None:
        return model.weights[0]
    # One place per model directory and number format; the key tells whether what lies there is still right.
    place = hashlib.sha256(str(model.path).encode()).hexdigest()[:12]
    directory = root / "openvino" / f"{model.path.name}-{place}-{weights}"
    key = f"openvino {ov.__version__} graph {graph.VERSION} model {model.fingerprint()}"

    def build(target: Path) -> None:
        def on_layer(layer: int) -> None:
            report("converting weights", 2 + 33 * layer / config.num_hidden_layers)

        report("opening weights", 1)
        decoder = graph.build_decoder(config, open_checkpoint(model), weights, on_layer)
        report("storing weights", 35)
        ov.save_model(decoder, target / READY_GRAPH, compress_to_fp16=False)

    publish(directory, key, build)
    give_memory_back()
    return directory / READY_GRAPH


def _properties(options: OpenVINOOptions) -> dict[str, Any]:
    return {
        # Otherwise CPUs that have them compute in bf16 or f16, and results depend on the machine.
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": options.cache,
        "INFERENCE_NUM_THREADS": options.threads or engine_cpus(),
        "NUM_STREAMS": 1,
        # I/O threads and the front-end share these CPUs, so the kernel must be free to move ours.
        "ENABLE_CPU_PINNING": False,
    }


def give_memory_back() -> None:
    """Hand the heap that was freed back to the system; glibc keeps it otherwise."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
