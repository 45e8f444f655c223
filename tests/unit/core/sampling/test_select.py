"""select.py against sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.sampling.select import at_least, highest


@given(st.integers(0, 2**32), st.integers(2, 60), st.data())
@settings(deadline=None)
def test_highest_is_a_sort_cut_off_with_ties(seed: int, size: int, data: st.DataObject) -> None:
    row = np.random.default_rng(seed).integers(0, 9, size).astype(np.float32)
    count = data.draw(st.integers(1, size - 1))
    border = np.sort(row)[::-1][count - 1]
    assert highest(row, None, count).tolist() == np.flatnonzero(row >= border).tolist()
    ids = np.arange(0, size, 2)
    if count < len(ids):
        border = np.sort(row[ids])[::-1][count - 1]
        assert highest(row, ids, count).tolist() == [i for i in ids.tolist() if row[i] >= border]


@pytest.mark.parametrize("size", [8192, 9000, 49152])
@pytest.mark.parametrize("count", [1, 5, 256, 257, 3000])
def test_highest_of_a_long_row(size: int, count: int) -> None:
    for seed, values in ((1, 10**6), (2, 40)):
        row = np.random.default_rng(seed).integers(-values, values, size).astype(np.float32)
        border = np.sort(row)[::-1][count - 1]
        assert highest(row, None, count).tolist() == np.flatnonzero(row >= border).tolist()


def test_highest_at_the_end_of_a_long_row_that_does_not_fill_its_columns() -> None:
    row = np.zeros(9000, np.float32)
    row[-3:] = [1, 3, 2]
    assert highest(row, None, 2).tolist() == [8998, 8999]


def test_at_least_includes_the_threshold() -> None:
    row = np.array([1, 3, 2, 3], np.float32)
    assert at_least(row, None, 3.0).tolist() == [1, 3]
    assert at_least(row, np.array([0, 2, 3]), 2.0).tolist() == [2, 3]
