"""noise.py against its documentation in Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.sampling.noise import Noise, gumbel, noise_key
from tests.support.sampling import plain_hash, plain_noise

seeds = st.integers(-(2**63), 2**64 - 1)


def hashes(noise: Noise, seed: int, position: int, ids: list[int]) -> np.ndarray:
    keys = np.array([noise_key(seed, position)], np.uint64)
    return noise.hashes(keys, np.array([len(ids)]), np.array(ids, np.intp))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("position", [0, 1, 2**31])
def test_noise_is_the_documented_hash(seed: int, position: int) -> None:
    ids = [0, 1, 17, 299]
    found = hashes(Noise(300), seed, position, ids)
    assert found.tolist() == [plain_hash(seed, position, i) for i in ids]
    assert gumbel(found) == pytest.approx([plain_noise(seed, position, i) for i in ids], rel=1e-12)


def test_noise_never_changes() -> None:
    """A continued request must draw what its first attempt would have drawn, also after an upgrade."""
    assert hashes(Noise(4), 1234, 5, [0, 1, 2, 3]).tolist() == [1749474856, 1709229756, 1869001442, 1922385111]


def test_several_keys_at_once() -> None:
    keys = np.array([noise_key(7, 0), noise_key(7, 1), noise_key(8, 0)], np.uint64)
    found = Noise(10).hashes(keys, np.array([2, 0, 1]), np.array([3, 4, 9]))
    assert found.tolist() == [plain_hash(7, 0, 3), plain_hash(7, 0, 4), plain_hash(8, 0, 9)]


@given(st.lists(st.tuples(seeds, st.integers(0, 2**20), st.booleans()), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_small_hashes_are_found_without_looking_at_all_ids(draws: list[tuple[int, int, bool]]) -> None:
    """The limit is the smallest hash, or one above it: the difference must be seen."""
    vocab = 1 << 16
    noise = Noise(vocab)
    smallest = [int(hashes(noise, seed, position, list(range(vocab))).min()) for seed, position, _ in draws]
    limits = [max(1, min(1 << 18, value + above)) for value, (*_, above) in zip(smallest, draws, strict=True)]
    keys = np.array([noise_key(seed, position) for seed, position, _ in draws], np.uint64)
    found = noise.ids_below(keys, np.array(limits, np.int64))
    for (seed, position, _), limit, ids in zip(draws, limits, found, strict=True):
        expected = np.flatnonzero(hashes(noise, seed, position, list(range(vocab))) < limit)
        assert sorted(ids.tolist()) == expected.tolist()
