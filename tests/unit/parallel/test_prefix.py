"""Names of blocks, and what is remembered of each rank."""

from hypothesis import given
from hypothesis import strategies as st

from muro.ids import EngineRank
from muro.parallel.prefix import MAX_BLOCKS_OF_PROMPT, PrefixIndex

R0, R1 = EngineRank(0), EngineRank(1)


def test_a_name_says_all_that_came_before() -> None:
    index = PrefixIndex(block_size=4)
    chain = index.chain(range(10))
    assert len(chain) == 2, "the rest is no full block"
    assert index.chain([*range(8), 99, 99])[:2] == chain
    assert index.chain([7, *range(1, 8)])[1] != chain[1]
    assert index.chain(range(10), salt="adapter")[0] != chain[0]
    assert index.chain(range(3)) == []


def test_the_depth_of_a_prompt() -> None:
    index = PrefixIndex(block_size=2)
    index.computes(R0, index.chain(range(10)))
    assert index.depth(R0, index.chain(range(20))) == 5
    assert index.depth(R0, index.chain([0, 1, 2, 3, 9, 9])) == 2
    assert index.depth(R0, index.chain([9, 9])) == index.depth(R1, index.chain(range(10))) == 0
    index.forget(R0)
    assert index.depth(R0, index.chain(range(10))) == 0 == len(index)


def test_memory_is_bounded_and_ends_go_before_beginnings() -> None:
    index = PrefixIndex(block_size=1, blocks_per_rank=6)
    index.computes(R0, index.chain([1, 2, 3, 4]))
    index.computes(R0, index.chain([1, 7, 8, 9]))
    assert len(index) == 6
    assert index.depth(R0, index.chain([1, 7, 8, 9])) == 4
    assert index.depth(R0, index.chain([1, 2, 3, 4])) == 3
    index.computes(R0, index.chain(range(100, 200)))
    assert len(index) == 6 and index.depth(R0, index.chain(range(100, 200))) == 6


def test_very_long_prompts_are_known_by_their_beginning() -> None:
    assert len(PrefixIndex(block_size=1).chain([0] * (MAX_BLOCKS_OF_PROMPT + 5))) == MAX_BLOCKS_OF_PROMPT


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=12),
    wanted=st.lists(st.integers(0, 2), max_size=12),
    limit=st.integers(1, 12),
)
def test_halving_finds_what_counting_finds(prompts: list[list[int]], wanted: list[int], limit: int) -> None:
    index = PrefixIndex(block_size=1, blocks_per_rank=limit)
    for prompt in prompts:
        index.computes(R0, index.chain(prompt))
    chain = index.chain(wanted)
    known = index._known.get(R0, {})
    counted = next((n for n, name in enumerate(chain) if name not in known), len(chain))
    assert index.depth(R0, chain) == counted
    assert not any(name in known for name in chain[counted:])
