"""hashing.py: the model must notice what a wrong scheduler would do."""

from __future__ import annotations

import numpy as np
import pytest

from muro.core.plan import SchedulerOutput, SequencePlan
from muro.errors import InternalError
from muro.testing.hashing import HashingExecutor


def run(executor: HashingExecutor, *sequences: SequencePlan) -> np.ndarray:
    total = sum(len(s.token_ids) for s in sequences)
    return executor.execute(SchedulerOutput(list(sequences), total)).logits


def whole(tokens: list[int], table: list[int]) -> SequencePlan:
    return SequencePlan("a", tokens, 0, table, 1)


def test_logits_depend_on_tokens_and_order_but_not_on_blocks_and_chunks() -> None:
    executor = HashingExecutor(num_blocks=9, block_size=2)
    first = run(executor, whole([1, 2, 3], [0, 1]))
    assert first.shape == (1, 64) and first.dtype == np.float32
    assert (first == run(executor, whole([1, 2, 3], [7, 3]))).all()
    assert not (first == run(executor, whole([2, 1, 3], [7, 3]))).all()
    assert not (first == run(executor, whole([1, 2], [7, 3]))).all()
    assert run(executor, SequencePlan("a", [1, 2], 0, [5, 6], 0)).shape == (0, 64)
    assert (first == run(executor, SequencePlan("a", [3], 2, [5, 6], 1))).all()
    every = run(executor, SequencePlan("a", [2, 3], 1, [5, 6], 2))
    assert (every == np.concatenate([run(executor, whole([1, 2], [8])), first])).all()


def test_a_wrong_table_gives_other_logits() -> None:
    executor = HashingExecutor(num_blocks=9, block_size=2)
    right = run(executor, whole([1, 2, 3], [0, 1]))
    run(executor, whole([4, 5, 6], [2, 3]))
    assert not (right == run(executor, SequencePlan("a", [3], 2, [2, 1], 1))).all()


@pytest.mark.parametrize(
    ("sequences", "match"),
    [
        ([whole([1, 2, 3], [0])], "do not cover"),
        ([whole([], [0])], "do not cover"),
        ([whole([1], [-1])], "do not cover"),
        ([SequencePlan("a", [3], 0, [0], 2)], "rows are wanted"),
        ([SequencePlan("a", [3], 2, [0, 1], 1)], "never stored"),
        ([whole([1], [4]), whole([2], [4])], "same place"),
        ([], "empty step"),
    ],
)
def test_plans_that_no_scheduler_makes_are_refused(sequences: list[SequencePlan], match: str) -> None:
    with pytest.raises(InternalError, match=match):
        run(HashingExecutor(num_blocks=9, block_size=2), *sequences)


def test_a_wrong_total_is_refused() -> None:
    with pytest.raises(InternalError, match="5 tokens"):
        HashingExecutor().execute(SchedulerOutput([whole([1], [0])], 5))
