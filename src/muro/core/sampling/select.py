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
    """The `count` best of `ids` (None: all) and whoever scores the same as the last of them, ascending if `ids` are.

    `count` is positive and below the number of ids.
    """
    if ids is None and count <= _COLUMNS // 8 and len(row) >= 8 * _COLUMNS:
        ids = _columns_of_the_highest(row, count)
    scores = row if ids is None else row[ids]
    return at_least(row, ids, float(np.partition(scores, -count)[-count]))


def _columns_of_the_highest(row: Row, count: int) -> Ids:
    """A few ids of a long row, ascending, all of its `count` best among them and whoever scores the same.

    The row is laid out in columns. At least `count` ids score as much as the `count`-th best top of a column, so a
    column with a lower top holds none of the best.
    """
    whole = len(row) - len(row) % _COLUMNS
    tops = row[:whole].reshape(-1, _COLUMNS).max(axis=0)
    columns = np.flatnonzero(tops >= np.partition(tops, -count)[-count])
    begins = np.arange(0, whole, _COLUMNS)
    return np.concatenate([(begins[:, None] + columns).ravel(), np.arange(whole, len(row))])
