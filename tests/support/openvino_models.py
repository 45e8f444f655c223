"""Small decoders of the Llama family with known logits, and the executor over them."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from muro.core.executor import Executor
from muro.core.plan import SchedulerOutput, SequencePlan
from muro.engines.openvino import graph
from muro.engines.openvino.compiled import compile_decoder
from muro.engines.openvino.executor import create_executor
from muro.engines.openvino.options import OpenVINOOptions
from muro.models.checkpoint import open_checkpoint
from muro.models.config import ModelDir, open_model

FAMILIES = Path(__file__).parents[1] / "data" / "families"
NAMES = ("llama-plain", "llama3-rope-scaling", "mistral-sliding", "qwen2-bias", "qwen3-qknorm")


def family(name: str) -> ModelDir:
    return open_model(FAMILIES / name)


def golden(name: str) -> list[dict[str, Any]]:
    return json.loads((FAMILIES / name / "golden.json").read_text())["cases"]


@cache
def compiled(name: str, weights: str, cache_format: str) -> ov.CompiledModel:
    """Compiled once per session; executors over it have caches of their own."""
    model = family(name)
    return compiled_from(model, weights, cache_format)


def compiled_from(model: ModelDir, weights: str = "f32", cache_format: str = "f16") -> ov.CompiledModel:
    assert model.config.decoder is not None
    decoder = graph.build_decoder(model.config.decoder, open_checkpoint(model), weights)
    return compile_decoder(decoder, model.config, OpenVINOOptions(cache=cache_format, threads=1))


def executor(name: str = "llama-plain", weights: str = "f32", cache_format: str = "f16", **options: Any) -> Executor:
    chosen = OpenVINOOptions(cache=cache_format, **{"cache_memory_mb": 1, **options})
    return create_executor(compiled(name, weights, cache_format), family(name).config, chosen)


def step(model: Executor, *sequences: SequencePlan) -> np.ndarray:
    """Logits of one step."""
    plan = SchedulerOutput(list(sequences), sum(len(sequence.token_ids) for sequence in sequences))
    return model.execute(plan).logits


def part(ids: Sequence[int], start: int, end: int, table: list[int], *, num_logits: int = 1) -> SequencePlan:
    """The plan for tokens start ... end of a sequence."""
    return SequencePlan("a", list(ids[start:end]), start, table, num_logits)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
