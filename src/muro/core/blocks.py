"""The blocks of the key/value cache: which are free, who shares which, and what free ones still hold.

Accounting only: block numbers, no memory. A block is held by any number of block tables, or it is free; a free block
is blank, or it still holds tokens that a later request may begin with. Those are found by a hash of all tokens up to
the block's end (`prefix.py`), and give way to others least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from muro.errors import ConfigError


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens.

    A block with a hash is full and never written again, so any number of tables may hold it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"a cache of {num_blocks} blocks of {block_size} tokens cannot hold anything")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block that was freed last is the one most likely still in the processor's cache.
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._holders = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no table holds, blank or not."""
        return len(self._blank) + len(self._kept)

    def free_blocks(self) -> list[int]:
        """Those blocks, in the order in which they are given out."""
        return [*reversed(self._blank), *self._kept]

    @property
    def usage(self) -> float:
        """Held part of the cache, 0 ... 1."""
        return 1.0 - self.num_free / self.num_blocks

    def holders(self, block: int) -> int:
        """How many tables hold a block."""
        return self._holders[block]

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def reserve(self, table: list[int], num_tokens: int) -> bool:
        """Lengthen `table` until it covers `num_tokens`; if the pool lacks blocks, change nothing and return false."""
        missing = -(-num_tokens // self.block_size) - len(table)
        if missing <= 0:
            return True
        if missing > len(self._blank) + len(self._kept):
            return False
        for _ in range(missing):
            block = self._blank.pop() if self._blank else self._evict()
            self._holders[block] = 1
            table.append(block)
        return True

    def release(self, table: Iterable[int]) -> None:
        """Let a table's blocks go. Of those that keep their tokens, the last is the first to give way later."""
        for block in reversed(list(table)):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            digest = self._hashes[block]
            if digest is None:
                self._blank.append(block)
            else:
                self._kept[block] = digest

    def keep(self, block: int, digest: bytes) -> None:
        """Let a held, full block be found by the hash of all tokens up to its end, unless another one is."""
        if self._hashes[block] is None and digest not in self._by_hash:
            self._hashes[block] = digest
            self._by_hash[digest] = block

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks that hold a beginning, as far as they are there."""
        found: list[int] = []
        for digest in digests:
            block = self._by_hash.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_unheld(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free: sharing them takes as many from `num_free`."""
        return sum(not self._holders[block] for block in blocks)

    def share(self, table: list[int], blocks: Iterable[int]) -> None:
        """Append blocks that `find` has given."""
        for block in blocks:
            if not self._holders[block]:
                del self._kept[block]
            self._holders[block] += 1
            table.append(block)

    def forget(self) -> None:
        """Find nothing any more of what was kept so far."""
        self._by_hash.clear()
        self._hashes = [None] * self.num_blocks
        self._blank.extend(reversed(self._kept))
        self._kept.clear()

    def _evict(self) -> int:
        block, digest = self._kept.popitem(last=False)
        del self._by_hash[digest]
        self._hashes[block] = None
        return block
