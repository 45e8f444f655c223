"""Which tokens a row of logits is drawn from: what the filters leave, and of a whole row those near the top."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from muro.core.sampling.select import at_least, highest
from muro.core.sampling.settings import Ids, Row, Sampling

NEAR = 13.0
"""How far below the best, in units of the temperature, an id of an unfiltered row is looked at whatever its noise."""


class Candidates(msgspec.Struct, gc=False):
    """What may win one draw. `ids` ascend, `logits` are theirs, `top` is the highest of them.

    `distance` says how much lower than `top` all others are, at least; None: others cannot win.
    """

    ids: Ids
    logits: Row
    top: float
    temperature: float
    key: int
    """The `noise_key` of the draw."""
    distance: float | None = None


class Filters:
    """Finds candidates in rows of `vocab_size` logits. Holds work space only; not safe for two threads."""

    def __init__(self, vocab_size: int) -> None:
        self._every = np.arange(vocab_size)
        self._work = np.empty(vocab_size, np.float32)

    def candidates(
        self, row: Row, sampling: Sampling, key: int, top: float, outsiders: Ids | None = None
    ) -> Candidates:
        """The candidates in a row whose highest allowed logit is `top`, a finite number.

        With `outsiders`, these of an unfiltered row are looked at besides, and no others can win.
        """
        distance = None
        ids = self._survivors(row, sampling, top)
        if ids is None:
            floor = np.float32(top - NEAR * sampling.temperature)
            ids = np.flatnonzero(row >= floor)
            if outsiders is not None:
                ids = np.union1d(ids, outsiders)
            elif 2 * len(ids) < len(row):
                # The others are at least one step of float32 below, which is a lot where numbers are large.
                distance = top - float(np.nextafter(floor, np.float32(-np.inf)))
            else:
                ids = self._every
        return Candidates(ids, row[ids], top, sampling.temperature, key, distance)

    def _survivors(self, row: Row, sampling: Sampling, top: float) -> Ids | None:
        """The ids that the filters leave, ascending; None for all. Equal scores at a border stay in together."""
        ids = sampling.allowed
        if sampling.min_p > 0.0:
            ids = at_least(row, ids, top + sampling.temperature * math.log(sampling.min_p))
        if 0 < sampling.top_k < (len(row) if ids is None else len(ids)):
            ids = highest(row, ids, sampling.top_k)
        if sampling.top_p < 1.0:
            ids = self._nucleus(row, ids, sampling, top)
        return ids

    def _nucleus(self, row: Row, ids: Ids | None, sampling: Sampling, top: float) -> Ids:
        """The smallest set of the most probable of `ids` that holds at least `top_p` of their probability."""
        scores = row if ids is None else row[ids]
        weights = np.subtract(scores, np.float32(top), out=self._work[: len(scores)])
        if sampling.temperature != 1.0:
            weights *= np.float32(1.0 / sampling.temperature)
        np.exp(weights, out=weights)
        total = float(weights.sum())
        # Tokens below this share hold less than 1 - top_p even if all were: what is sorted is short.
        heavy = np.flatnonzero(weights >= np.float32((1.0 - sampling.top_p) * total / len(weights)))
        weights = weights[heavy]
        few = weights[weights >= np.float32(1e-3 * total)]
        if few.sum(dtype=np.float64) < sampling.top_p * total:
            few = weights
        ordered = np.sort(few)[::-1]
        last = int(np.searchsorted(np.cumsum(ordered, dtype=np.float64), sampling.top_p * total))
        kept: Ids = heavy[weights >= ordered[min(last, len(ordered) - 1)]]
        return kept if ids is None else ids[kept]
