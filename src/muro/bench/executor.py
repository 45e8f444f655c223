"""The model alone: tokens per second of the executor with nothing around it, what the server is measured against.

One loop, one thread, greedy choice; no scheduler, no process boundary. Runs in the calling process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muro.bench import choosing
from muro.bench.sampling import median
from muro.config import home
from muro.core.executor import Executor
from muro.core.plan import SchedulerOutput, SequencePlan
from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError
from muro.models.config import open_model
from muro.text.tokenizer import load_tokenizer

PROMPT_TOKENS = 62
LONG_PROMPT_TOKENS = 512
STREAMS = (1, 16)


def run(
    model: str | Path,
    options: OpenVINOOptions | None = None,
    *,
    tokens: int = 64,
    rounds: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure the executor of a model directory.

    Args:
        model: the model directory.
        options: as for the engine.
        tokens: tokens that each stream decodes per round, after a prompt of 62 tokens.
        rounds: measurements of each kind; the median is reported.
        progress: hears what is being measured.

    Returns:
        `decode_tokens_per_s` ({"1": ..., "16": ...}), `prefill_tokens_per_s` (a prompt of 512 tokens in one step),
        `ttft_62_ms` (62 tokens to the first one chosen), what `choosing.run` says, `load_s`, `rss_mb` (Linux),
        `options`.
    """
    options = options or OpenVINOOptions()
    from muro.engines.openvino.compiled import compile_model
    from muro.engines.openvino.executor import create_executor

    started = perf_counter()
    directory = open_model(model)
    compiled = compile_model(directory, options, home(), lambda phase, _: progress(phase))
    executor = create_executor(compiled, directory.config, options)
    loaded = perf_counter() - started
    loop = _Loop(executor)
    decode: dict[str, list[float]] = {str(streams): [] for streams in STREAMS}
    first: list[float] = []
    prefill: list[float] = []
    loop.prefill(1, PROMPT_TOKENS)  # the first pass allocates
    for number in range(rounds):
        for streams in STREAMS:
            progress(f"{streams} streams, round {number + 1} of {rounds}")
            decode[str(streams)].append(loop.decode(streams, tokens))
        progress(f"prompts, round {number + 1} of {rounds}")
        first.append(loop.prefill(1, PROMPT_TOKENS))
        prefill.append(LONG_PROMPT_TOKENS / loop.prefill(1, LONG_PROMPT_TOKENS))
    progress(f"choosing tokens for {choosing.STREAMS} streams")
    vocab_size = executor.info().vocab_size
    texts = choosing.texts_of(_passage(directory.path), vocab_size)
    chosen = choosing.run(_Loop(executor, choosing.STREAMS).compute, vocab_size, texts, rounds)
    result = {
        "decode_tokens_per_s": {streams: round(median(rates), 1) for streams, rates in decode.items()},
        "prefill_tokens_per_s": round(median(prefill), 1),
        "ttft_62_ms": round(median(first) * 1000, 1),
        **chosen,
        "load_s": round(loaded, 2),
        "rss_mb": _resident_mb(),
        "options": {"weights": options.weights, "cache": options.cache, "threads": options.threads},
    }
    executor.shutdown()
    return result


def _passage(directory: Path) -> list[int]:
    """Token ids of a text; none if the model has no tokenizer."""
    try:
        return load_tokenizer(directory).encode(choosing.PASSAGE)
    except ConfigError:
        return []


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


class _Loop:
    """Drives an executor by hand; each of at most `streams` sequences owns a row of blocks."""

    def __init__(self, executor: Executor, streams: int = max(STREAMS)) -> None:
        self._executor = executor
        self._info = executor.info()
        self._blocks_each = self._info.num_blocks // streams

    def prefill(self, streams: int, length: int) -> float:
        """Seconds from a prompt to the token after it."""
        started = perf_counter()
        self._step([self._prompt(length)] * streams, 0)
        return perf_counter() - started

    def decode(self, streams: int, tokens: int) -> float:
        """Tokens per second of all streams together."""
        chosen = self._step([self._prompt(PROMPT_TOKENS)] * streams, 0)
        started = perf_counter()
        for step in range(tokens):
            chosen = self._step([[token] for token in chosen], PROMPT_TOKENS + step)
        return streams * tokens / (perf_counter() - started)

    def _prompt(self, length: int) -> list[int]:
        return [(37 * i + 11) % self._info.vocab_size for i in range(length)]

    def compute(self, token_ids: list[list[int]], past: int) -> NDArray[np.float32]:
        """One step: the logits after the last token of each stream."""
        each = self._blocks_each
        sequences = [
            SequencePlan(str(row), ids, past, list(range(row * each, (row + 1) * each)), 1)
            for row, ids in enumerate(token_ids)
        ]
        result = self._executor.execute(SchedulerOutput(sequences, sum(map(len, token_ids))))
        return (result.result() if isinstance(result, Future) else result).logits

    def _step(self, token_ids: list[list[int]], past: int) -> list[int]:
        return [int(token) for token in self.compute(token_ids, past).argmax(axis=1)]
