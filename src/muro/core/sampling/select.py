"""Selecting among many scores without sorting them."""

from __future__ import annotations

import numpy as np

from muro.core.sampling.settings import Ids, Row

_COLUMNS = 1024


def at_least(row: Row, ids: Ids | None, threshold: float) -> Ids:
    """Those of `ids` (None: all) that score `threshold` or more, ascending if `ids` are."""
    if ids is None:
        return np.flatnonzero(row >= np.float32(threshold))
    return ids[row[ids] >= np.float32(threshold)]


def highest(row: Row, ids: Ids | None, count: int) -> Ids:
    """The `count` best of `ids` (None: all) and whoever scores the same as the last of them.

    `count` is positive and below the number of ids.

    In a long row, the best of each of 1,024 columns are looked at first: the `count`-th of these is a bound below,
    which few reach.
    """
    if ids is None and count <= _COLUMNS // 4 and len(row) >= 8 * _COLUMNS:
        whole = len(row) - len(row) % _COLUMNS
        columns = row[:whole].reshape(-1, _COLUMNS).max(axis=0)
        ids = at_least(row, None, float(np.partition(columns, -count)[-count]))
    scores = row if ids is None else row[ids]
    return at_least(row, ids, float(np.partition(scores, -count)[-count]))
