"""The block tables of requests: what each of them holds, what it shares, and what it leaves behind for others.

Puts `blocks.py` (which blocks are free) and `prefix.py` (which beginnings are equal) together. Decides nothing: who may
run, and who has to give way, is the business of `scheduler.py`.
"""

from __future__ import annotations

from muro.core.blocks import BlockPool
from muro.core.prefix import PrefixHasher, count_lookup
from muro.core.request import Request, RequestStatus
from muro.wire.stats import PrefixCacheStats


class KVCache:
    """The cache as requests see it. Keeps their `block_table`, `capacity` and the other fields about the cache.

    Args:
        blocks: the blocks.
        prefix_caching: whether equal beginnings are shared.
    """

    def __init__(self, blocks: BlockPool, *, prefix_caching: bool) -> None:
        self._blocks = blocks
        self._prefix_caching = prefix_caching
        self._hasher = PrefixHasher(blocks.block_size)
        self._stats = PrefixCacheStats()

    @property
    def usage(self) -> float:
        """Held part of the cache, 0 ... 1."""
        return self._blocks.usage

    def admit(self, request: Request, room: int, spare: int) -> bool:
        """Give a waiting request its table, if `spare` blocks are left over; else change nothing.

        The table gets room for `room` tokens, its known ones at least. It begins with all full blocks that are there;
        but never with all known tokens, since the logits after the last one are needed.
        """
        blocks = self._blocks
        if blocks.num_free <= spare:
            return False
        length = len(request.token_ids)
        found = self._find(request, (length - 1) // blocks.block_size)
        if blocks.num_free - spare < blocks.blocks_for(room) - len(found) + blocks.num_unheld(found):
            return False
        table = request.block_table
        blocks.share(table, found)
        blocks.reserve(table, room)
        request.capacity = len(table) * blocks.block_size
        request.num_kept_blocks = len(found)
        request.num_computed_tokens = request.num_scheduled_tokens = hits = len(found) * blocks.block_size
        preempted = request.status is RequestStatus.PREEMPTED
        if not preempted:
            request.num_cached_tokens = hits
        if self._prefix_caching and not request.skip_reading_prefix_cache:
            count_lookup(self._stats, length, hits, preempted=preempted)
        return True

    def grow(self, request: Request) -> bool:
        """Lengthen a table by one block; false if there is none."""
        if not self._blocks.reserve(request.block_table, request.capacity + 1):
            return False
        request.capacity += self._blocks.block_size
        return True

    def keep(self, request: Request) -> None:
        """Let others find the full blocks that are computed."""
        full = request.num_computed_tokens // self._blocks.block_size
        first = request.num_kept_blocks
        if full <= first or not self._prefix_caching or not self._hasher.is_current(request):
            return
        hashes = self._hasher.hashes(request, full)
        for index in range(first, full):
            self._blocks.keep(request.block_table[index], hashes[index])
        request.num_kept_blocks = full

    def let_go(self, request: Request) -> None:
        """Take a request's blocks away. A step under way may still read its table, so that stays as it is."""
        self.keep(request)
        self._blocks.release(request.block_table)
        request.block_table = []
        request.capacity = request.num_kept_blocks = request.num_computed_tokens = request.num_scheduled_tokens = 0

    def forget(self) -> None:
        """Let no request find anything that was computed so far."""
        self._hasher.forget()
        self._blocks.forget()
        self._stats.reset = True

    def take_stats(self) -> PrefixCacheStats:
        """What was looked up since the last call."""
        stats, self._stats = self._stats, PrefixCacheStats()
        return stats

    def _find(self, request: Request, most: int) -> list[int]:
        self._hasher.begin(request)
        if request.skip_reading_prefix_cache or not self._prefix_caching:
            return []
        return self._blocks.find(self._hasher.hashes(request, most)[:most])
