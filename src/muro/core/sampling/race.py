"""Drawing: who has the largest sum of scaled logit and noise.

The token is the one with the largest `(logit - top) / temperature + gumbel(seed, position, token id)`, which is a draw
from the softmax (the Gumbel-max trick). Many draws run at once, as one long array; none depends on another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muro.core.sampling.candidates import Candidates
from muro.core.sampling.noise import Noise, Words, gumbel
from muro.core.sampling.settings import Ids

_LOG2 = math.log(2.0)


def winners(noise: Noise, draws: Sequence[Candidates]) -> list[int | Ids]:
    """The token of each draw; or the ids that might still win though they are not among the candidates.

    Exact sums are computed only for those whose upper bound reaches the sum of one of them. The noise is
    -log(-log(1 - v)) <= -log(v) for v in (0, 1), and log2(v) is at least exponent plus mantissa of v as a float, which
    its bits hold. So hardly any logarithm is computed.
    """
    lengths = np.array([len(draw.ids) for draw in draws])
    starts = np.cumsum(lengths) - lengths
    keys = np.array([draw.key for draw in draws], np.uint64)
    temperatures = np.array([draw.temperature for draw in draws])
    tops = np.array([draw.top for draw in draws], np.float32)
    ids = np.concatenate([draw.ids for draw in draws])
    logits = np.concatenate([draw.logits for draw in draws])
    hashes = noise.hashes(keys, lengths, ids)
    bound = hashes.astype(np.float32).view(np.int32).astype(np.float32)
    bound *= np.float32(-_LOG2 / 2**23)
    bound += np.float32(_LOG2 * (127 + 32))
    scores = logits - np.repeat(tops, lengths)
    scores *= np.repeat((1.0 / temperatures).astype(np.float32), lengths)
    bound += scores
    # The first place of each draw that has its highest bound.
    peaks = np.flatnonzero(bound == np.repeat(np.maximum.reduceat(bound, starts), lengths))
    peaks = peaks[np.searchsorted(peaks, starts)]
    reached = scores[peaks] + gumbel(hashes[peaks])
    # A thousandth covers the rounding of the bound.
    close = np.flatnonzero(bound >= np.repeat((reached - 1e-3).astype(np.float32), lengths))
    begins = np.searchsorted(close, starts)
    counts = np.diff(begins, append=len(close))
    sums = logits[close].astype(np.float64) - np.repeat(tops, counts)
    sums /= np.repeat(temperatures, counts)
    sums += gumbel(hashes[close])
    # Of equal sums, the lowest id wins.
    best = [begin + int(sums[begin : begin + count].argmax()) for begin, count in zip(begins, counts, strict=True)]
    tokens: list[int | Ids] = ids[close[best]].tolist()
    _note_outsiders(noise, draws, keys, sums[best], tokens)
    return tokens


def _note_outsiders(
    noise: Noise, draws: Sequence[Candidates], keys: Words, reached: NDArray[np.float64], tokens: list[int | Ids]
) -> None:
    """Where an outsider's noise may make up for what it lacks, replace the token by all such; `reached` are the sums.

    Noise is at most -log(v) for a hash of v * 2**32, so only a very small hash can do that, and few ids have one. Since
    the top itself is among the candidates, sums reach at least the least noise, -3.1: the limits are bounded.
    """
    places = [place for place, draw in enumerate(draws) if draw.distance is not None]
    if not places:
        return
    lacking = np.array([(draws[place].distance or 0.0) / draws[place].temperature for place in places])
    limits = np.ceil(2.0**32 * np.exp(-lacking - reached[places])).astype(np.int64) + 1
    for place, ids in zip(places, noise.ids_below(keys[places], limits), strict=True):
        if len(ids):
            tokens[place] = ids
