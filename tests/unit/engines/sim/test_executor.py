"""The executor that only keeps time: tokens that can be foretold, read through the block tables, in the time set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from muro.core.plan import SchedulerOutput, SequencePlan
from muro.engines.sim.executor import SimExecutor, alphabet, continuation
from muro.engines.sim.options import BYTES, SimOptions


def make(vocab_size: int = BYTES, **options: object) -> SimExecutor:
    still = {"step_us": 0.0, "sequence_us": 0.0, "prefill_us_per_token": 0.0, "num_blocks": 16, "block_size": 4}
    return SimExecutor(SimOptions(**(still | options)), vocab_size)  # type: ignore[arg-type]


def run(executor: SimExecutor, *sequences: SequencePlan) -> np.ndarray:
    return executor.execute(SchedulerOutput(list(sequences), sum(len(s.token_ids) for s in sequences))).logits


def whole(tokens: Sequence[int], table: list[int]) -> SequencePlan:
    return SequencePlan("a", list(tokens), 0, table, 1)


def test_the_token_that_stands_out_is_the_one_foretold() -> None:
    executor = make()
    sequence = list(b"Once upon")
    expected = continuation(sequence, 5)
    assert run(executor, whole(sequence, [3, 1, 2, 0])).argmax(axis=1).tolist() == expected[:1]
    for position, token in enumerate(expected[:-1], len(sequence)):
        logits = run(executor, SequencePlan("a", [token], position, [3, 1, 2, 0], 1))
        assert logits.argmax(axis=1).tolist() == [expected[position - len(sequence) + 1]]
        assert (logits > 0).sum() == 1


def test_what_follows_does_not_depend_on_what_was_generated_and_what_given() -> None:
    tokens = continuation(b"abc", 20)
    assert continuation([*b"abc", *tokens[:7]], 13) == tokens[7:]
    assert continuation(b"abd", 20) != tokens
    assert continuation(b"abc", 20, seed=1) != tokens
    assert set(tokens) <= set(b"etaoinshrdlu ")


def test_chunks_and_blocks_do_not_matter_but_a_wrong_table_does() -> None:
    executor = make(tokens="sampled")
    first = run(executor, whole(b"abcdef", [0, 1])).copy()
    run(executor, SequencePlan("b", list(b"abcd"), 0, [7, 5], 0))
    assert (first == run(executor, SequencePlan("b", list(b"ef"), 4, [7, 5], 1))).all()
    run(executor, SequencePlan("c", list(b"wxyz"), 0, [9, 8], 0))
    assert not (first == run(executor, SequencePlan("b", list(b"ef"), 4, [9, 5], 1))).all()
    assert run(executor, SequencePlan("b", [1], 0, [2], 0)).shape == (0, BYTES)


def test_rows_come_in_the_order_of_the_sampled_sequences() -> None:
    plans = [whole(b"a", [0]), SequencePlan("b", list(b"bb"), 0, [1], 0), whole(b"c", [2])]
    assert run(make(), *plans).argmax(axis=1).tolist() == continuation(b"a", 1) + continuation(b"c", 1)


def test_more_rows_than_sequences() -> None:
    """As for log-probabilities of a prompt: a row for each token that asks for one, also beyond the usual number."""
    text = b"abcdefgh"
    executor = make(max_num_seqs=2)
    rows = run(executor, SequencePlan("a", list(text), 0, [0, 1], 7), whole(b"xy", [2]))
    each = [continuation(text[:end], 1)[0] for end in range(2, 9)]
    assert rows.argmax(axis=1).tolist() == each + continuation(b"xy", 1)
    assert run(executor, whole(b"xy", [2])).argmax(axis=1).tolist() == continuation(b"xy", 1)


def test_scores_to_sample_from() -> None:
    executor = make(tokens="sampled")
    first = run(executor, whole(b"abc", [0])).copy()
    letters = sorted(set(alphabet(BYTES)))
    assert first[0, letters].min() >= 0 and first[0, letters].max() < 8
    assert np.delete(first[0], letters).max() < -100
    assert (first == run(executor, whole(b"abc", [4]))).all()
    assert not (first == run(executor, whole(b"abd", [4]))).all()


def test_the_middle_of_another_vocabulary() -> None:
    tokens = continuation([5, 6], 50, vocab_size=4096)
    assert min(tokens) >= 512 and max(tokens) < 3584 and len(set(tokens)) > 30
    assert run(make(4096), whole([5, 6], [0])).argmax(axis=1).tolist() == tokens[:1]


@pytest.mark.parametrize("slow", [False, True])
def test_a_step_takes_its_time_or_longer_but_not_both(slow: bool) -> None:
    now = iter([100.0, 100.5 if slow else 100.001])
    slept: list[float] = []
    options = SimOptions(step_us=10_000, sequence_us=1000, prefill_us_per_token=100, num_blocks=8, block_size=4)
    executor = SimExecutor(options, BYTES, clock=lambda: next(now), sleep=slept.append)
    plan = SchedulerOutput([whole(b"abc", [0]), SequencePlan("b", [1], 3, [1], 1)], 4)
    assert executor.seconds(plan) == pytest.approx(0.01 + 2 * 0.001 + 3 * 0.0001)
    executor.execute(plan)
    assert slept == ([] if slow else [pytest.approx(0.0123 - 0.001)])
