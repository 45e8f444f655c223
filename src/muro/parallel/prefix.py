"""What the ranks have computed, as far as a front-end can know: which rank has which beginnings of prompts. Pure.

A prompt is cut into blocks, and the name of a block depends on all blocks before it (a chain), so that equal names
mean equal beginnings. Per rank the names are kept in the order of their last use, up to a bound, as the rank's own
cache does: what was not used for long is forgotten first, and of one prompt the end before the beginning. So what is
known of a prompt is always a beginning of it, and its length is found by halving.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from muro.ids import EngineRank

MAX_BLOCKS_OF_PROMPT: Final = 4096
"""Blocks of one prompt that are looked at; the rest of it follows its beginning."""


class PrefixIndex:
    """Which rank has computed which prefixes.

    Args:
        block_size: tokens per block; best that of the engines.
        blocks_per_rank: blocks remembered per rank; best what an engine's cache holds.
    """

    def __init__(self, block_size: int = 16, blocks_per_rank: int = 1 << 15) -> None:
        self._block_size = block_size
        self._limit = blocks_per_rank
        self._known: dict[EngineRank, OrderedDict[int, None]] = {}

    def chain(self, token_ids: Sequence[int], salt: Hashable = None) -> list[int]:
        """Names of the full blocks of a prompt. `salt` is whatever else the cache depends on, an adapter for one."""
        size = self._block_size
        full = min(len(token_ids) // size, MAX_BLOCKS_OF_PROMPT)
        name, names = hash(("muro", salt)), []
        for start in range(0, full * size, size):
            name = hash((name, *token_ids[start : start + size]))
            names.append(name)
        return names

    def depth(self, rank: EngineRank, chain: Sequence[int]) -> int:
        """How many blocks of the beginning a rank has computed."""
        known = self._known.get(rank)
        if not known or not chain or chain[0] not in known:
            return 0
        low, high = 1, len(chain)  # `low` blocks are known
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if chain[middle - 1] in known else (low, middle - 1)
        return low

    def computes(self, rank: EngineRank, chain: Iterable[int]) -> None:
        """A rank gets a prompt, and will have computed it."""
        known = self._known.setdefault(rank, OrderedDict())
        for name in reversed(list(chain)[: self._limit]):
            known[name] = None
            known.move_to_end(name)
        while len(known) > self._limit:
            known.popitem(last=False)

    def forget(self, rank: EngineRank) -> None:
        """A rank has lost its cache."""
        self._known.pop(rank, None)

    def __len__(self) -> int:
        """Blocks that are remembered, over all ranks."""
        return sum(map(len, self._known.values()))
