"""Logits -> the next token and its log-probabilities.

A token is a pure function of (seed, output position, logits): the token with the largest
`logit / temperature + gumbel(seed, position, token id)` among those that the filters leave, which is a draw from the
softmax (the Gumbel-max trick). No generator with a history exists, so a request gives the same tokens whatever else
is in its batch and wherever it is continued.

The noise of one token id does not depend on any other, so filtered rows compute it for the few survivors only.
Filters select by threshold or partition; nothing sorts a whole row unless a whole row was asked for.
Does not know requests; `Draw` is all that it needs of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from muro.wire.arrays import Tensor
from muro.wire.output import Logprobs

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy (protocol section 8)."""

NO_TOKEN = -1
"""In place of a token id: the row has no usable score (NaN, infinity, or everything forbidden)."""

_MASK64 = 2**64 - 1

Row = NDArray[np.float32]
Ids = NDArray[np.intp]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one request chooses its tokens; checked by `admission.py`.

    Filters apply in this order: allowed ids, `min_p`, `top_k`, `top_p`, all after the temperature.
    `logprobs` counts the top entries to report beside the chosen token; -1 is the whole vocabulary.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    allowed: Ids | None = None
    logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


class Draw(msgspec.Struct, gc=False):
    """One token to choose: at which position of the output, and which ids must not be taken now."""

    sampling: Sampling
    position: int
    banned: Ids | None = None


class Sampled(msgspec.Struct):
    """The result for each row: a token id or `NO_TOKEN`, and log-probabilities where they were asked for."""

    token_ids: list[int]
    logprobs: list[Logprobs | None]


class Noise:
    """A hash of 32 bits for each (seed, position, token id); `gumbel` turns it into noise.

    It is two rounds of multiply and xor-shift (the constants are those of "lowbias32" by Chris Wellons) over
    a mixed token id, with the two halves of a 64-bit key (SplitMix64 over seed and position) mixed in.
    """

    def __init__(self, vocab_size: int) -> None:
        ids = np.arange(vocab_size, dtype=np.uint32)
        self._mixed_ids = _mix32(ids * np.uint32(0x9E3779B1) + np.uint32(0x7F4A7C15))
        self._hash = np.empty(vocab_size, np.uint32)
        self._shifted = np.empty(vocab_size, np.uint32)

    def hashes(self, seed: int, position: int, ids: Ids | None) -> NDArray[np.uint32]:
        """The hash of each of `ids`, or of every token id (then in a buffer that the next call overwrites)."""
        key = _splitmix64(_splitmix64(seed & _MASK64) + position & _MASK64)
        if ids is None:
            values, scratch = self._hash, self._shifted
            np.bitwise_xor(self._mixed_ids, np.uint32(key & 0xFFFFFFFF), out=values)
        else:
            values = self._mixed_ids[ids] ^ np.uint32(key & 0xFFFFFFFF)
            scratch = np.empty_like(values)
        return _mix32(values, np.uint32(key >> 32), scratch)


class Sampler:
    """Chooses tokens for rows of `vocab_size` logits. Holds work space only; not safe for two threads."""

    def __init__(self, vocab_size: int) -> None:
        self._noise = Noise(vocab_size)
        self._bound = np.empty(vocab_size, np.float32)
        self._work = np.empty(vocab_size, np.float32)

    def sample(self, logits: NDArray[np.float32], draws: Sequence[Draw | None]) -> Sampled:
        """Choose one token per row of `logits`, shape [len(draws), vocab_size]; a row whose draw is None is skipped."""
        if not draws:
            return Sampled([], [])
        token_ids: list[int] = logits.argmax(axis=1).tolist()
        logprobs: list[Logprobs | None] = [None] * len(draws)
        best = logits[np.arange(len(draws)), token_ids]
        finite: list[bool] = np.isfinite(best).tolist()
        for i, draw in enumerate(draws):
            if draw is None or not finite[i]:
                token_ids[i] = NO_TOKEN
                continue
            sampling = draw.sampling
            if not sampling.is_greedy or sampling.allowed is not None or draw.banned is not None:
                token_ids[i] = self._choose(logits[i], draw)
            if sampling.logprobs is not None and token_ids[i] != NO_TOKEN:
                logprobs[i] = row_logprobs(logits[i], token_ids[i], sampling.logprobs)
        return Sampled(token_ids, logprobs)

    def _choose(self, row: Row, draw: Draw) -> int:
        sampling = draw.sampling
        if draw.banned is not None:
            row = row.copy()
            row[draw.banned] = -np.inf
        ids = sampling.allowed
        scores = row if ids is None else row[ids]
        best = int(scores.argmax())
        top = float(scores[best])
        if not math.isfinite(top):
            return NO_TOKEN
        if sampling.is_greedy:
            return best if ids is None else int(ids[best])
        return self._winner(row, self._survivors(row, sampling, top), draw, top)

    def _survivors(self, row: Row, sampling: Sampling, top: float) -> Ids | None:
        """The ids that the filters leave, ascending; None for all. Equal scores at a border stay in together."""
        ids = sampling.allowed
        if sampling.min_p > 0.0:
            ids = _at_least(row, ids, top + sampling.temperature * math.log(sampling.min_p))
        if 0 < sampling.top_k < (len(row) if ids is None else len(ids)):
            scores = row if ids is None else row[ids]
            ids = _at_least(row, ids, float(np.partition(scores, -sampling.top_k)[-sampling.top_k]))
        if sampling.top_p < 1.0:
            ids = self._nucleus(row, ids, sampling, top)
        return ids

    def _nucleus(self, row: Row, ids: Ids | None, sampling: Sampling, top: float) -> Ids:
        """The smallest set of the most probable of `ids` that holds at least `top_p` of their probability."""
        scores = row if ids is None else row[ids]
        weights = np.subtract(scores, np.float32(top), out=self._work[: len(scores)])
        weights *= np.float32(1.0 / sampling.temperature)
        np.exp(weights, out=weights)
        total = float(weights.sum())
        # Tokens below this share hold less than 1 - top_p even if all were: what is sorted is short.
        heavy = np.sort(weights[weights >= np.float32((1.0 - sampling.top_p) * total / len(weights))])[::-1]
        last = int(np.searchsorted(np.cumsum(heavy, dtype=np.float64), sampling.top_p * total))
        kept = np.flatnonzero(weights >= heavy[min(last, len(heavy) - 1)])
        return kept if ids is None else ids[kept]

    def _winner(self, row: Row, ids: Ids | None, draw: Draw, top: float) -> int:
        """The one of `ids` (None: all) with the largest sum of scaled score and noise.

        Exact sums are computed only for those whose upper bound reaches the sum of one of them. The noise is
        -log(-log(1 - v)) <= -log(v) for v in (0, 1), and log2(v) is at least exponent plus mantissa of v as a float,
        which its bits hold. So no logarithm of a whole row is ever computed.
        """
        sampling = draw.sampling
        hashes = self._noise.hashes(sampling.seed, draw.position, ids)
        bound, work = self._bound[: len(hashes)], self._work[: len(hashes)]
        np.copyto(work, hashes, casting="unsafe")
        np.copyto(bound, work.view(np.int32), casting="unsafe")
        bound *= np.float32(-math.log(2.0) / 2**23)
        bound += np.float32(math.log(2.0) * (127 + 32))
        np.subtract(row if ids is None else row[ids], np.float32(top), out=work)
        work *= np.float32(1.0 / sampling.temperature)
        bound += work
        first = int(bound.argmax())
        reached = float(work[first]) + float(gumbel(hashes[first : first + 1])[0])
        # A thousandth covers the rounding of the bound.
        near = np.flatnonzero(bound >= np.float32(reached - 1e-3))
        contenders = near if ids is None else ids[near]
        sums = row[contenders].astype(np.float64) / sampling.temperature + gumbel(hashes[near])
        return int(contenders[sums.argmax()])


def gumbel(hashes: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Standard Gumbel noise, between about -3.1 and 22.9, from hashes of 32 bits."""
    uniform = (hashes + np.float64(0.5)) * 2.0**-32
    noise: NDArray[np.float64] = -np.log(-np.log1p(-uniform))
    return noise


def row_logprobs(row: Row, token_id: int, top: int) -> Logprobs:
    """Log-probabilities of one position: the chosen token, then the `top` most probable ones, -1 for all.

    They are those of the model, before temperature and filters. `ids` int32 and `values` float32 have shape
    [1, top + 1], `ranks` int64 has shape [1]; ranks count from 1.
    """
    size = len(row)
    count = size if top == -1 else min(top, size)
    highest = float(row.max())
    normaliser = highest + math.log(float(np.exp(row - np.float32(highest)).sum()))
    columns = np.empty(count + 1, np.int32)
    columns[0] = token_id
    if count:
        ids = np.arange(size) if count == size else _at_least(row, None, float(np.partition(row, -count)[-count]))
        columns[1:] = ids[np.argsort(-row[ids], kind="stable")][:count]
    values = (row[columns].astype(np.float64) - normaliser).astype(np.float32)
    rank = int(np.count_nonzero(row > row[token_id])) + 1
    return Logprobs(
        Tensor("<i4", [1, count + 1], columns.tobytes()),
        Tensor("<f4", [1, count + 1], values.tobytes()),
        Tensor("<i8", [1], np.array([rank], np.int64).tobytes()),
    )


def _at_least(row: Row, ids: Ids | None, threshold: float) -> Ids:
    if ids is None:
        return np.flatnonzero(row >= np.float32(threshold))
    return ids[row[ids] >= np.float32(threshold)]


def _mix32(
    values: NDArray[np.uint32], key: np.uint32 | None = None, scratch: NDArray[np.uint32] | None = None
) -> NDArray[np.uint32]:
    """Mix in place and return `values`; a bijection of 32 bits."""
    shifted = np.right_shift(values, np.uint32(16), out=scratch)
    values ^= shifted
    values *= np.uint32(0x21F0AAAD)
    if key is not None:
        values ^= key
    values ^= np.right_shift(values, np.uint32(15), out=shifted)
    values *= np.uint32(0xD35A2D97)
    values ^= np.right_shift(values, np.uint32(15), out=shifted)
    return values


def _splitmix64(value: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014) on `value`."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
