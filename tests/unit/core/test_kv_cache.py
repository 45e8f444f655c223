"""kv_cache.py: what requests share, what they leave behind, and in which order that gives way."""

from __future__ import annotations

from itertools import count

from muro.core.blocks import BlockPool
from muro.core.kv_cache import KVCache
from muro.core.request import Request, RequestStatus
from muro.core.sampling import Sampling
from muro.wire.stats import PrefixCacheStats

SIZE = 4


class Bench:
    """A cache of a few blocks."""

    def __init__(self, blocks: int = 4, *, prefix_caching: bool = True) -> None:
        self.pool = BlockPool(blocks, SIZE)
        self.cache = KVCache(self.pool, prefix_caching=prefix_caching)
        self.numbers = count()

    def run(self, prompt: list[int], **more: object) -> Request:
        """Admit a request and compute all of it."""
        one = Request(str(next(self.numbers)), prompt, Sampling(), max_length=99, **more)  # type: ignore[arg-type]
        assert self.cache.admit(one, len(prompt), 0)
        self.compute(one)
        return one

    def compute(self, one: Request) -> None:
        one.num_computed_tokens = one.num_scheduled_tokens = len(one.token_ids)
        self.cache.keep(one)

    def there(self, prompt: list[int]) -> int:
        """How many tokens are there, without touching them."""
        return SIZE * len(self.cache._find(Request("", prompt, Sampling(), max_length=99), len(prompt) // SIZE))

    def hit(self, prompt: list[int], **more: object) -> int:
        """How many tokens of a prompt are there; it runs and ends."""
        one = self.run(prompt, **more)
        self.cache.let_go(one)
        return one.num_cached_tokens


def test_running_requests_share_full_blocks_and_write_into_their_own() -> None:
    bench = Bench()
    one = bench.run([1] * 9)
    other = bench.run([1] * 8 + [2])
    assert other.num_cached_tokens == other.num_computed_tokens - 1 == 8
    assert one.block_table[:2] == other.block_table[:2] and one.block_table[2] != other.block_table[2]
    assert [bench.pool.holders(block) for block in one.block_table] == [2, 2, 1]
    table = one.block_table
    bench.cache.let_go(one)
    assert one.block_table == [] and len(table) == 3, "a step under way may still read it"
    bench.cache.let_go(other)
    assert bench.cache.usage == 0.0


def test_at_least_one_token_is_computed() -> None:
    bench = Bench()
    assert bench.hit([1] * 8) == 0
    assert bench.hit([1] * 8) == 4, "the last full block holds the token whose logits are needed"
    assert bench.hit([1] * 9) == 8


def test_what_was_generated_is_found_too() -> None:
    bench = Bench()
    one = bench.run([1, 2, 3])
    one.token_ids += [4, 5, 6]
    while one.capacity < 5:
        assert bench.cache.grow(one)
    one.num_computed_tokens = one.num_scheduled_tokens = 5  # the last token of an output is never computed
    bench.cache.let_go(one)
    assert bench.hit([1, 2, 3, 4, 5]) == 4


def test_who_differs_in_salt_or_adapter_finds_nothing() -> None:
    bench = Bench()
    assert bench.hit([1] * 5) == 0
    assert bench.hit([1] * 5, cache_salt="a") == 0
    assert bench.hit([1] * 5, lora_id=1) == 0
    assert bench.hit([1] * 5, cache_salt="a") == 4


def test_who_does_not_want_to_read_leaves_something_for_others() -> None:
    bench = Bench()
    assert bench.hit([1] * 5, skip_reading_prefix_cache=True) == 0
    assert bench.hit([1] * 5, skip_reading_prefix_cache=True) == 0
    assert bench.cache.take_stats() == PrefixCacheStats()
    assert bench.hit([1] * 5) == 4


def test_nothing_is_shared_when_it_is_switched_off() -> None:
    bench = Bench(prefix_caching=False)
    assert [bench.hit([1] * 9) for _ in range(2)] == [0, 0]
    assert bench.cache.take_stats() == PrefixCacheStats()


def test_the_least_recently_used_gives_way_first_and_ends_before_beginnings() -> None:
    bench = Bench()
    bench.hit([1] * 8)
    bench.hit([2] * 8)
    assert bench.hit([1] * 5) == 4  # which is used again, and took the end of its own for the fifth token
    there = []
    for other in (3, 4, 5, 6):
        bench.hit([other] * 4)
        there.append((bench.there([1] * 8), bench.there([2] * 8)))
    assert there == [(4, 8), (4, 4), (4, 0), (0, 0)]


def test_room_counts_what_sharing_takes_from_the_free_blocks() -> None:
    bench = Bench()
    bench.hit([1] * 9)
    spare = Request("a", [1] * 9, Sampling(), max_length=99)
    assert not bench.cache.admit(spare, 9, 2) and spare.block_table == []
    assert bench.cache.admit(spare, 9, 1)
    assert bench.pool.num_free == 1


def test_nothing_is_found_after_forgetting_not_even_what_runs() -> None:
    bench = Bench(6)
    bench.hit([1] * 5)
    running = bench.run([1] * 5)
    bench.cache.forget()
    running.token_ids += [1] * 4
    assert bench.cache.grow(running)
    bench.compute(running)
    assert bench.hit([1] * 5) == 0
    bench.cache.let_go(running)
    assert bench.hit([1] * 9) == 4, "that of the new time"
    assert bench.cache.take_stats().reset
    assert not bench.cache.take_stats().reset


def test_hits_are_counted_in_tokens_per_step_and_apart_for_the_preempted() -> None:
    bench = Bench()
    bench.hit([1] * 9)
    one = bench.run([1] * 9)
    stats = bench.cache.take_stats()
    assert (stats.requests, stats.queries, stats.hits, stats.preempted_requests) == (2, 18, 8, 0)
    bench.cache.let_go(one)
    one.status = RequestStatus.PREEMPTED
    one.token_ids += [5]
    assert bench.cache.admit(one, 10, 0)
    stats = bench.cache.take_stats()
    assert (stats.requests, stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (0, 1, 10, 8)
    assert one.num_cached_tokens == 8, "as it was when it first ran"
