"""Which blocks of the key/value cache are free.

Accounting only: block numbers, no memory. A block table belongs to its request; here it is lengthened and emptied.
"""

from __future__ import annotations

from muro.errors import ConfigError


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens; every block is free or in exactly one table."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"a cache of {num_blocks} blocks of {block_size} tokens cannot hold anything")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block that was freed last is the one most likely still in the processor's cache.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Used part of the cache, 0 ... 1."""
        return 1.0 - len(self._free) / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def reserve(self, table: list[int], num_tokens: int) -> bool:
        """Lengthen `table` until it covers `num_tokens`; if the pool lacks blocks, change nothing and return false."""
        missing = -(-num_tokens // self.block_size) - len(table)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        table.extend(reversed(self._free[-missing:]))
        del self._free[-missing:]
        return True

    def release(self, table: list[int]) -> None:
        """Free all blocks of `table` and empty it."""
        self._free.extend(reversed(table))
        table.clear()
