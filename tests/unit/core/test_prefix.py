"""prefix.py: two requests have equal hashes exactly as far as they begin alike and may share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.core.prefix import PrefixHasher, count_lookup
from muro.core.request import Request
from muro.core.sampling import Sampling
from muro.wire.stats import PrefixCacheStats

SIZE = 2
tokens = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 1), min_size=1, max_size=12)
salts = st.none() | st.sampled_from(["", "a", "a 0", "\ud800"])


def request(prompt: list[int], salt: str | None = None, lora_id: int = 0) -> Request:
    return Request("a", prompt, Sampling(), max_length=99, cache_salt=salt, lora_id=lora_id)


def hashes(hasher: PrefixHasher, one: Request) -> list[bytes]:
    hasher.begin(one)
    return hasher.hashes(one, len(one.token_ids) // SIZE)


@given(
    first=tokens, second=tokens, salts=st.tuples(salts, salts), loras=st.tuples(st.integers(0, 1), st.integers(0, 1))
)
def test_equal_exactly_as_far_as_everything_is(
    first: list[int], second: list[int], salts: tuple[str | None, str | None], loras: tuple[int, int]
) -> None:
    hasher = PrefixHasher(SIZE)
    one = hashes(hasher, request(first, salts[0], loras[0]))
    other = hashes(hasher, request(second, salts[1], loras[1]))
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        end = (index + 1) * SIZE
        alike = first[:end] == second[:end] and salts[0] == salts[1] and loras[0] == loras[1]
        assert (left == right) is alike
    assert len(set(one)) == len(one)


@given(tokens=tokens, cuts=st.lists(st.integers(0, 12)))
def test_made_bit_by_bit_they_are_the_same(tokens: list[int], cuts: list[int]) -> None:
    hasher = PrefixHasher(SIZE)
    one = request(tokens)
    hasher.begin(one)
    for cut in cuts:
        wanted = min(cut, len(tokens)) // SIZE
        assert len(hasher.hashes(one, wanted)) >= wanted
    assert hasher.hashes(one, len(tokens) // SIZE) == hashes(hasher, request(tokens))


def test_nobody_else_can_foretell_them_and_nothing_outlives_forgetting() -> None:
    hasher = PrefixHasher(SIZE)
    old, waiting = request([1, 2, 3, 4]), request([1, 2])
    before = list(hashes(hasher, old))
    hashes(hasher, waiting)
    assert hashes(PrefixHasher(SIZE), request([1, 2, 3, 4])) != before
    hasher.forget()
    assert not hasher.is_current(old) and hasher.hashes(old, 2) == before
    assert hashes(hasher, waiting)[0] != before[0]
    assert hasher.is_current(waiting)


@pytest.mark.parametrize("preempted", [False, True])
def test_lookups_count_apart_after_a_preemption(preempted: bool) -> None:
    stats = PrefixCacheStats()
    count_lookup(stats, 10, 4, preempted=preempted)
    count_lookup(stats, 5, 0, preempted=preempted)
    counted = (2, 15, 4)
    assert (stats.requests, stats.queries, stats.hits) == ((0, 0, 0) if preempted else counted)
    assert (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (
        counted if preempted else (0, 0, 0)
    )
