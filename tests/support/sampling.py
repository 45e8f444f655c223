"""Sampling spelt out: the plainest implementation of the same definitions, one token id at a time, in Python numbers.

Only `noise` repeats how the engine does it (integers do not round); all else is independent of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from muro.wire.request import SamplingParams

M64 = 2**64 - 1


def splitmix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & M64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & M64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & M64
    return value ^ (value >> 31)


def mix(value: int, key: int = 0) -> int:
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    value ^= key
    value = ((value ^ (value >> 15)) * 0xD35A2D97) & 0xFFFFFFFF
    return value ^ (value >> 15)


def plain_hash(seed: int, position: int, token: int) -> int:
    key = splitmix((splitmix(seed & M64) + position) & M64)
    mixed = mix((token * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF)
    return mix(mixed ^ (key & 0xFFFFFFFF), key >> 32)


def plain_noise(seed: int, position: int, token: int) -> float:
    return -math.log(-math.log1p(-(plain_hash(seed, position, token) + 0.5) / 2**32))


def plain_scores(
    row: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    grammar: Iterable[int] | None = None,
) -> dict[int, float]:
    """What the temperature is applied to: the logits of all ids that may come, changed as the options say."""
    scores = {i: float(score) for i, score in enumerate(row)}
    if grammar is not None:
        scores = {i: scores[i] for i in grammar}
    for i, bias in (params.logit_bias or {}).items():
        if i in scores:
            scores[i] += max(-100.0, min(100.0, bias))
    for i in scores:
        if i in prompt or i in output:
            penalty = params.repetition_penalty
            scores[i] = scores[i] / penalty if scores[i] > 0 else scores[i] * penalty
        scores[i] -= params.frequency_penalty * list(output).count(i)
        scores[i] -= params.presence_penalty * (i in output)
    banned = set()
    if len(output) < params.min_tokens:
        banned |= {*params.all_stop_token_ids, *(params.stop_token_ids or ())}
        if params.eos_token_id is not None and not params.ignore_eos:
            banned.add(params.eos_token_id)
    for word in params.bad_words_token_ids or ():
        if list(output[len(output) - len(word) + 1 :]) == word[:-1] and len(output) >= len(word) - 1:
            banned.add(word[-1])
    return {i: score for i, score in scores.items() if i not in banned}


def plain_filtered(scores: dict[int, float], params: SamplingParams) -> dict[int, float]:
    """Scores over the temperature, of the ids that the filters leave."""
    if params.allowed_token_ids is not None:
        scores = {i: score for i, score in scores.items() if i in params.allowed_token_ids}
    scaled = {i: score / params.temperature for i, score in scores.items()}
    if not scaled:
        return scaled
    top = max(scaled.values())
    if params.min_p:
        scaled = {i: s for i, s in scaled.items() if s >= top + math.log(params.min_p) - 1e-6}
    if 0 < params.top_k < len(scaled):
        border = sorted(scaled.values(), reverse=True)[params.top_k - 1]
        scaled = {i: s for i, s in scaled.items() if s >= border}
    if params.top_p < 1:
        total = sum(math.exp(s - top) for s in scaled.values())
        mass, border = 0.0, -math.inf
        for s in sorted(scaled.values(), reverse=True):
            border, mass = s, mass + math.exp(s - top)
            if mass >= params.top_p * total:
                break
        scaled = {i: s for i, s in scaled.items() if s >= border}
    return scaled


def plain_token(
    row: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    grammar: Iterable[int] | None = None,
) -> int | None:
    """The token that comes next; None if none may."""
    scores = plain_scores(row, params, prompt, output, grammar)
    if params.temperature < 1e-5:
        if params.allowed_token_ids is not None:
            scores = {i: score for i, score in scores.items() if i in params.allowed_token_ids}
        return max(scores, key=lambda i: (scores[i], -i), default=None)
    scaled = plain_filtered(scores, params)
    seed = params.seed or 0
    return max(scaled, key=lambda i: scaled[i] + plain_noise(seed, len(output), i), default=None)


def plain_distribution(scaled: dict[int, float], vocab_size: int) -> NDArray[np.float64]:
    """The softmax of what `plain_filtered` gives."""
    weights = np.zeros(vocab_size)
    for i, s in scaled.items():
        weights[i] = math.exp(s)
    return weights / weights.sum()


def plain_repeats(output: Sequence[int], smallest: int, largest: int, count: int) -> bool:
    """Whether the output ends in a pattern that stands there `count` times."""
    for size in range(smallest, largest + 1):
        end = list(output[len(output) - size * count :])
        if len(output) >= size * count and end == end[:size] * count:
            return True
    return False


def plain_forced(tokens: Sequence[int], start: Sequence[int], end: Sequence[int], budget: int) -> int | None:
    """The token that a spent budget of thinking demands; found by reading all tokens from the first one on."""
    inside: list[int] | None = None
    since: list[int] = []
    for token in tokens:
        since.append(token)
        if inside is None:
            if since[-len(start) :] == list(start):
                inside, since = [], []
        else:
            inside.append(token)
            if inside[-len(end) :] == list(end):
                inside, since = None, []
    if inside is None or len(inside) < budget:
        return None
    for stands in range(len(end) - 1, 0, -1):
        if inside[-stands:] == list(end[:stands]):
            return end[stands]
    return end[0]
