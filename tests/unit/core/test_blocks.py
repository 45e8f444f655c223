"""blocks.py: every block is free or in exactly one table, and a refused reservation changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.core.blocks import BlockPool
from muro.errors import ConfigError


@given(
    num_blocks=st.integers(1, 12),
    block_size=st.integers(1, 5),
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans())),
)
def test_free_and_used_blocks_add_up(num_blocks: int, block_size: int, moves: list[tuple[int, int, bool]]) -> None:
    pool = BlockPool(num_blocks, block_size)
    tables: list[list[int]] = [[] for _ in range(4)]
    for which, num_tokens, keep in moves:
        table = tables[which]
        if not keep:
            pool.release(table)
            table.clear()
            continue
        before, free = list(table), pool.num_free
        fits = pool.blocks_for(num_tokens) - len(table) <= free
        assert pool.reserve(table, num_tokens) is fits
        assert table[: len(before)] == before
        assert fits or (table == before and pool.num_free == free)
        assert not fits or len(table) == max(len(before), pool.blocks_for(num_tokens))
        used = [block for one in tables for block in one]
        assert len(used) == len(set(used)) and set(used) <= set(range(num_blocks))
        assert len(used) + pool.num_free == num_blocks
        assert pool.usage == pytest.approx(len(used) / num_blocks)


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 blocks"):
        BlockPool(0, 16)
