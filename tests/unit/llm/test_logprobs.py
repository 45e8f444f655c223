"""logprobs.py: an engine's arrays as maps. What becomes of them in a stream is tested with `pipeline.py`."""

import numpy as np
import pytest

from muro.llm.logprobs import Logprob, cumulated, joined, read_positions
from muro.wire.arrays import tensor_from_numpy
from muro.wire.output import Logprobs


def sent(ids: list[list[int]], values: list[list[float]], ranks: list[int], rank_type: type = np.int64) -> Logprobs:
    parts = (np.array(ids, np.int32), np.array(values, np.float32), np.array(ranks, rank_type))
    return Logprobs(*map(tensor_from_numpy, parts))


@pytest.mark.parametrize("rank_type", [np.int32, np.int64])
def test_the_token_comes_first_then_the_best_then_the_others(rank_type: type) -> None:
    given = sent(
        [[5, 7, 5, 9], [7, 7, 5, 9]], [[-1.5, -0.5, -1.5, -4.0], [-0.25, -0.25, -2.0, -8.0]], [2, 1], rank_type
    )
    first, second = read_positions(given, 2, str)
    assert list(first.items()) == [
        (5, Logprob(-1.5, 2, "5")),
        (7, Logprob(-0.5, 1, "7")),
        (9, Logprob(-4.0, None, "9")),
    ]
    assert list(second) == [7, 5, 9] and second[5].rank == 2
    assert cumulated([first, second]) == -1.75


def test_all_of_them_have_a_rank() -> None:
    (only,) = read_positions(sent([[1, 0, 1, 2]], [[-2.0, -1.0, -2.0, -3.0]], [2]), -1, lambda _: None)
    assert [(i, p.rank) for i, p in only.items()] == [(1, 2), (0, 1), (2, 3)]


def test_joining_makes_new_lists() -> None:
    before = [1]
    assert joined(before, [2]) == [1, 2] and before == [1]
    assert (joined(None, None), joined(before, None), joined(None, [3])) == (None, [1], [3])
