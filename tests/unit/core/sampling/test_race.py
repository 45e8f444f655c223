"""race.py: the winner is who has the largest sum, found by computing all sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.sampling.candidates import Candidates
from muro.core.sampling.noise import Noise, gumbel, noise_key
from muro.core.sampling.race import winners
from tests.support.sampling import plain_hash


def candidates(
    ids: np.ndarray, logits: np.ndarray, key: int, temperature: float = 1.0, distance: float | None = None
) -> Candidates:
    return Candidates(
        ids, logits.astype(np.float32), float(logits.astype(np.float32).max()), temperature, key, distance
    )


def plain_winner(noise: Noise, draw: Candidates) -> int:
    sums = draw.logits.astype(np.float64) / draw.temperature
    sums += gumbel(noise.hashes(np.array([draw.key], np.uint64), np.array([len(draw.ids)]), draw.ids))
    return int(draw.ids[sums.argmax()])


@given(st.lists(st.tuples(st.integers(0, 2**32), st.sampled_from([1e-4, 0.3, 1.0, 4.0])), min_size=1, max_size=9))
@settings(max_examples=100, deadline=None)
def test_each_draw_is_won_by_the_largest_sum_in_any_company(draws: list[tuple[int, float]]) -> None:
    noise = Noise(500)
    entries = []
    for seed, temperature in draws:
        generator = np.random.default_rng(seed)
        ids = np.sort(generator.permutation(500)[: generator.integers(1, 400)])
        logits = generator.standard_normal(len(ids)) * 4
        logits[1:][generator.random(len(ids) - 1) < 0.2] = -np.inf
        entries.append(candidates(ids, logits, noise_key(seed, 3), temperature))
    assert winners(noise, entries) == [plain_winner(noise, entry) for entry in entries]


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_an_outsider_that_may_win_is_not_overlooked(temperature: float) -> None:
    """The luckiest id of a vocabulary wins from far below: with it left out, the draw must be open."""
    vocab = 1 << 16
    noise = Noise(vocab)
    every = np.arange(vocab)
    opened = 0
    for seed in range(40):
        key = noise_key(seed, 0)
        lucky = int(noise.hashes(np.array([key], np.uint64), np.array([vocab]), every).argmin())
        # As much as the noise of the lucky one can make up for, less what the favourite has.
        own = [-np.log(-np.log1p(-(plain_hash(seed, 0, i) + 0.5) / 2**32)) for i in (0, lucky)]
        gap = float(own[1] - own[0])
        if lucky == 0 or gap < 7:
            continue
        for further in (-0.1, 0.1):
            logits = np.array([0.0, -(gap + further) * temperature])
            both = candidates(np.array([0, lucky]), logits, key, temperature)
            alone = candidates(np.array([0]), logits[:1], key, temperature, distance=-float(np.float32(logits[1])))
            wins = plain_winner(noise, both) == lucky
            assert wins == (further < 0)
            if wins:
                opened += 1
                (outsiders,) = winners(noise, [alone])
                assert isinstance(outsiders, np.ndarray) and lucky in outsiders
        far = candidates(np.array([0]), np.array([0.0]), key, temperature, distance=(gap + 3) * temperature)
        assert winners(noise, [far]) == [0]
    assert opened > 5
