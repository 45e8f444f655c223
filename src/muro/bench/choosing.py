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
PROMPT = 16
"""Tokens that a stream begins with."""
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


PASSAGE = (
    "The old lighthouse stood at the end of a long stone pier, and every evening its keeper climbed the stairs to "
    "light the lamp. He had done so for thirty years, in calm weather and in storms, and he knew each step by its "
    "sound. Ships passed far out on their way to the harbour, and sometimes one of them would greet him with a "
    "short blast of its horn. In winter the wind came from the north and covered the windows with salt, so that he "
    "had to clean them twice a day. On Sundays his sister walked out to him with bread, cheese and the newspaper, "
    "and they talked about the prices of fish, the new school in the village, and what would become of the "
    "lighthouse when nobody was left to look after it."
)
"""What the streams of a model with a tokenizer go on from: over senseless texts its scores are flatter than in use."""


def texts_of(ids: list[int], vocab_size: int) -> list[list[int]]:
    """A beginning for each stream: a piece of `ids`, or numbers if there are too few."""
    if len(ids) < STREAMS + PROMPT:
        return [[(997 * stream + 37 * i + 11) % vocab_size for i in range(PROMPT)] for stream in range(STREAMS)]
    return [ids[stream : stream + PROMPT] for stream in range(STREAMS)]


def run(step: Step, vocab_size: int, texts: list[list[int]], rounds: int = 3) -> dict[str, Any]:
    """Measure every case beside decode steps of 64 streams.

    Args:
        step: computes.
        vocab_size: width of its rows.
        texts: see `texts_of`.
        rounds: steps that count.

    Returns:
        `decode_step_64_ms`, and `sampling_64`: for each case, milliseconds and per cent of that step.
    """
    texts = [list(text) for text in texts]
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
        self._states = None if history is None else [SamplerState(history, PROMPT) for _ in range(STREAMS)]

    def choose(self, logits: NDArray[np.float32], texts: list[list[int]]) -> float:
        """Seconds to choose the next token of every stream."""
        began = perf_counter()
        if self._states is None:
            draws = [Draw(one, len(text) - PROMPT) for one, text in zip(self._samplings, texts, strict=True)]
        else:
            parts = zip(self._states, self._samplings, texts, strict=True)
            draws = [state.draw(one, text) for state, one, text in parts]
        self._sampler.sample(logits, draws)
        return perf_counter() - began
