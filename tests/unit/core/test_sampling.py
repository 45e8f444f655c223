"""sampling.py against the plainest implementation of the same definition, and against the softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from muro.core.sampling import NO_TOKEN, Draw, Noise, Sampler, Sampling, gumbel, row_logprobs

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


def plain_noise(seed: int, position: int, token: int) -> float:
    key = splitmix((splitmix(seed & M64) + position) & M64)
    mixed = mix((token * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF)
    value = mix(mixed ^ (key & 0xFFFFFFFF), key >> 32)
    return -math.log(-math.log1p(-(value + 0.5) / 2**32))


def plain_choice(row: NDArray[np.float32], draw: Draw) -> int:
    """The definition, spelt out with full sorts."""
    sampling = draw.sampling
    scores = {i: float(score) for i, score in enumerate(row)}
    if sampling.allowed is not None:
        scores = {i: scores[i] for i in sampling.allowed.tolist()}
    for i in [] if draw.banned is None else draw.banned.tolist():
        scores.pop(i, None)
    if sampling.temperature < 1e-5:
        return max(scores, key=lambda i: (scores[i], -i))
    scaled = {i: score / sampling.temperature for i, score in scores.items()}
    top = max(scaled.values())
    if sampling.min_p:
        scaled = {i: s for i, s in scaled.items() if s >= top + math.log(sampling.min_p) - 1e-6}
    if 0 < sampling.top_k < len(scaled):
        border = sorted(scaled.values(), reverse=True)[sampling.top_k - 1]
        scaled = {i: s for i, s in scaled.items() if s >= border}
    if sampling.top_p < 1:
        total = sum(math.exp(s - top) for s in scaled.values())
        mass, border = 0.0, -math.inf
        for s in sorted(scaled.values(), reverse=True):
            border, mass = s, mass + math.exp(s - top)
            if mass >= sampling.top_p * total:
                break
        scaled = {i: s for i, s in scaled.items() if s >= border}
    return max(scaled, key=lambda i: scaled[i] + plain_noise(sampling.seed, draw.position, i))


def rows(number: int, vocab: int, seed: int, spread: float = 2.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((number, vocab)) * spread).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("position", [0, 1, 2**31])
def test_noise_is_the_documented_hash(seed: int, position: int) -> None:
    noise = Noise(300)
    ids = np.array([0, 1, 17, 299], np.intp)
    expected = [plain_noise(seed, position, int(i)) for i in ids]
    assert gumbel(noise.hashes(seed, position, ids)) == pytest.approx(expected, rel=1e-12)
    assert gumbel(noise.hashes(seed, position, None))[ids] == pytest.approx(expected, rel=1e-12)


def test_noise_never_changes() -> None:
    """A continued request must draw what its first attempt would have drawn, also after an upgrade."""
    assert Noise(4).hashes(1234, 5, None).tolist() == NOISE_1234_5


@given(
    data=st.integers(0, 2**32),
    vocab=st.integers(2, 200),
    temperature=st.sampled_from([0.0, 1e-4, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 20, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.61, 0.2, 1e-6]),
    min_p=st.sampled_from([0.0, 0.003, 0.07, 0.9, 1.0]),
    limit=st.booleans(),
    ban=st.booleans(),
)
@settings(max_examples=300)
def test_same_choice_as_the_plain_definition(
    data: int, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float, limit: bool, ban: bool
) -> None:
    generator = np.random.default_rng(data)
    row = (generator.standard_normal(vocab) * 3).astype(np.float32)
    allowed = np.sort(generator.permutation(vocab)[: vocab // 2 + 1]) if limit else None
    banned = np.array([int(np.argmax(row))], np.intp) if ban else None
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=data, allowed=allowed)
    draw = Draw(sampling, position=data % 7, banned=banned)
    assert Sampler(vocab).sample(row[None], [draw]).token_ids == [plain_choice(row, draw)]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_pruning_a_wide_row_never_loses_the_winner(temperature: float) -> None:
    logits = rows(24, 49152, seed=3)
    noise, sampler = Noise(49152), Sampler(49152)
    draws = [Draw(Sampling(temperature=temperature, seed=i), i) for i in range(len(logits))]
    sums = [row.astype(np.float64) / temperature + gumbel(noise.hashes(i, i, None)) for i, row in enumerate(logits)]
    assert sampler.sample(logits, draws).token_ids == [int(s.argmax()) for s in sums]


def chi_squared(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_draws_follow_the_softmax(vary: str) -> None:
    number, vocab, temperature = 20_000, 32, 1.3
    row = rows(1, vocab, seed=1, spread=1.0)[0]
    sampler = Sampler(vocab)
    draws = [
        Draw(Sampling(temperature=temperature, seed=i if vary == "seed" else 99), i if vary == "position" else 0)
        for i in range(number)
    ]
    tokens = sampler.sample(np.broadcast_to(row, (number, vocab)), draws).token_ids
    weights = np.exp(row.astype(np.float64) / temperature)
    # 61.1 is the 99.9 % quantile of chi-squared with 31 degrees of freedom.
    assert chi_squared(np.bincount(tokens, minlength=vocab), number * weights / weights.sum()) < 61.1


def test_successive_draws_are_independent() -> None:
    number, vocab = 20_000, 8
    sampler = Sampler(vocab)
    draws = [Draw(Sampling(seed=5), i) for i in range(number)]
    tokens = np.array(sampler.sample(np.zeros((number, vocab), np.float32), draws).token_ids)
    pairs = np.bincount(tokens[:-1] * vocab + tokens[1:], minlength=vocab * vocab)
    # 103.4 is the 99.9 % quantile of chi-squared with 63 degrees of freedom.
    assert chi_squared(pairs, np.full(vocab * vocab, (number - 1) / vocab**2)) < 103.4


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = rows(9, 1001, seed=4)
    options = [
        Sampling(seed=1), Sampling(temperature=0.0, logprobs=2), Sampling(seed=2, top_k=5), Sampling(seed=3, top_p=0.8),
        Sampling(seed=4, min_p=0.1, logprobs=0), Sampling(seed=5, temperature=0.4, top_k=50, top_p=0.9),
        Sampling(seed=6, allowed=np.arange(3, 900, 7)), Sampling(seed=7, logprobs=-1),
        Sampling(seed=8, temperature=9.0),
    ]  # fmt: skip
    draws = [Draw(sampling, position) for position, sampling in enumerate(options)]
    sampler = Sampler(1001)
    together = sampler.sample(logits, draws)
    for order in (list(range(9)), [8, 0, 7, 1, 6, 2, 5, 3, 4]):
        for i in order:
            alone = Sampler(1001).sample(logits[i : i + 1].copy(), [draws[i]])
            assert (alone.token_ids[0], alone.logprobs[0]) == (together.token_ids[i], together.logprobs[i])
    shuffled = sampler.sample(logits[::-1].copy(), draws[::-1])
    assert shuffled.token_ids[::-1] == together.token_ids


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(), Sampling(top_k=3, logprobs=2)])
def test_a_row_without_usable_scores_gives_no_token_and_hurts_no_other(bad: float, sampling: Sampling) -> None:
    logits = rows(3, 50, seed=5)
    logits[1, 20] = bad
    sampled = Sampler(50).sample(logits, [Draw(sampling, 0)] * 3)
    assert sampled.token_ids[1] == NO_TOKEN and sampled.logprobs[1] is None
    assert NO_TOKEN not in (sampled.token_ids[0], sampled.token_ids[2])


def test_everything_forbidden_gives_no_token() -> None:
    logits = rows(2, 5, seed=6)
    logits[1] = -np.inf
    draws = [Draw(Sampling(allowed=np.array([1, 2])), 0, np.array([1, 2])), Draw(Sampling(), 0)]
    assert Sampler(5).sample(logits, draws).token_ids == [NO_TOKEN, NO_TOKEN]


def test_a_skipped_row_gives_no_token() -> None:
    sampled = Sampler(5).sample(rows(2, 5, seed=7), [None, Draw(Sampling(temperature=0.0), 0)])
    assert sampled.token_ids[0] == NO_TOKEN and sampled.token_ids[1] >= 0
    assert Sampler(5).sample(np.empty((0, 5), np.float32), []).token_ids == []


def test_logits_are_left_as_they_were() -> None:
    logits = rows(1, 100, seed=8)
    before = logits.copy()
    draw = Draw(Sampling(top_k=5, top_p=0.5, min_p=0.1, logprobs=3), 0, np.array([3, 4]))
    Sampler(100).sample(logits, [draw])
    assert (logits == before).all()


@pytest.mark.parametrize("top", [0, 1, 5, 99, 100, -1])
def test_logprobs(top: int) -> None:
    row = rows(1, 100, seed=9)[0]
    exact = row.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum())
    order = np.argsort(-row, kind="stable")
    token = int(order[7])
    found = row_logprobs(row, token, top)
    columns = 1 + (100 if top == -1 else top)
    ids = np.frombuffer(found.ids.data, "<i4")
    assert (found.ids.dtype, found.values.dtype, found.ranks.dtype) == ("<i4", "<f4", "<i8")
    assert (found.ids.shape, found.values.shape, found.ranks.shape) == ([1, columns], [1, columns], [1])
    assert ids.tolist() == [token, *order[: columns - 1].tolist()]
    assert np.frombuffer(found.values.data, "<f4") == pytest.approx(exact[ids], abs=1e-5)
    assert np.frombuffer(found.ranks.data, "<i8").tolist() == [8]
    assert found.cu is None


def test_equal_scores_rank_by_id_and_never_zero() -> None:
    row = np.zeros(6, np.float32)
    found = row_logprobs(row, 4, 3)
    assert np.frombuffer(found.ids.data, "<i4").tolist() == [4, 0, 1, 2]
    assert np.frombuffer(found.ranks.data, "<i8").tolist() == [1]


NOISE_1234_5 = [1749474856, 1709229756, 1869001442, 1922385111]
