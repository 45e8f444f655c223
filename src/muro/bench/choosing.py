"""What choosing tokens costs beside the step that computes their scores: 64 streams of a model, its own logits.

Steps and choices take turns, so that a machine's moods fall on both alike. Runs in the calling process.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from muro.bench.sampling import median
from muro.core.sampling import Draw, Sampler, SamplerState, Sampling
from muro.core.sampling.settings import History

STREAMS = 64
WARM_STEPS = 2

_PENALTIES = History(presence_penalty=0.3, frequency_penalty=0.3, repetition_penalty=1.1)
CASES = {
    "greedy": Sampling(temperature=0.0),
    "temperature": Sampling(temperature=0.8),
    "top_p": Sampling(temperature=0.8, top_p=0.95),
    "top_k": Sampling(temperature=0.8, top_k=50),
    "penalties": Sampling(temperature=0.0, history=_PENALTIES),
    "penalties_logprobs": Sampling(temperature=0.0, history=_PENALTIES, logprobs=5),
    "top_p_penalties_logprobs": Sampling(temperature=0.8, top_p=0.95, history=_PENALTIES, logprobs=5),
}

Step = Callable[[list[list[int]], int], NDArray[np.float32]]
"""Computes some tokens of each stream, all standing behind the same number of others; gives a row for each stream."""


def run(step: Step, vocab_size: int, rounds: int = 3) -> dict[str, Any]:
    """Measure every case beside decode steps of 64 streams with different texts.

    Returns:
        `decode_step_64_ms`, and `sampling_64`: for each case, milliseconds and per cent of that step.
    """
    texts = [[(997 * stream + 37 * i + 11) % vocab_size for i in range(8)] for stream in range(STREAMS)]
    requests = [_Requests(vocab_size, sampling) for sampling in CASES.values()]
    logits = step(texts, 0)
    steps: list[float] = []
    choices: dict[str, list[float]] = {name: [] for name in CASES}
    for number in range(WARM_STEPS + rounds):
        for text, token_id in zip(texts, logits.argmax(axis=1), strict=True):
            text.append(int(token_id))
        began = perf_counter()
        logits = step([text[-1:] for text in texts], len(texts[0]) - 1)
        steps.append(perf_counter() - began)
        for name, one in zip(CASES, requests, strict=True):
            choices[name].append(one.choose(logits, texts))
        if number < WARM_STEPS:
            steps.clear()
            for samples in choices.values():
                samples.clear()
    whole = median(steps)
    spent = {name: median(samples) for name, samples in choices.items()}
    return {
        "decode_step_64_ms": round(whole * 1000, 1),
        "sampling_64": {
            name: {"ms": round(seconds * 1000, 2), "percent_of_step": round(100 * seconds / whole, 1)}
            for name, seconds in spent.items()
        },
    }


class _Requests:
    """As many requests as there are streams, all with the same options but for the seed."""

    def __init__(self, vocab_size: int, sampling: Sampling) -> None:
        self._sampler = Sampler(vocab_size)
        self._samplings = [msgspec.structs.replace(sampling, seed=stream) for stream in range(STREAMS)]
        history = sampling.history
        self._states = None if history is None else [SamplerState(history, 8) for _ in range(STREAMS)]

    def choose(self, logits: NDArray[np.float32], texts: list[list[int]]) -> float:
        """Seconds to choose the next token of every stream."""
        began = perf_counter()
        if self._states is None:
            draws = [Draw(one, len(text) - 8) for one, text in zip(self._samplings, texts, strict=True)]
        else:
            parts = zip(self._states, self._samplings, texts, strict=True)
            draws = [state.draw(one, text) for state, one, text in parts]
        self._sampler.sample(logits, draws)
        return perf_counter() - began
