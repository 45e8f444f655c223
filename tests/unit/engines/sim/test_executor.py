"""The executor that only keeps time: tokens that were laid out, scores read through the block tables, the time set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from muro.core.plan import ModelRunnerOutput, SchedulerOutput, SequencePlan
from muro.engines.sim.executor import SimExecutor
from muro.engines.sim.profile import Profile
from muro.engines.sim.streams import Stream
from muro.engines.sim.text import BYTES, text_for

INSTANT = Profile(step_us=0, sequence_us=0, prefill_us_per_token=0, num_blocks=16, block_size=4)


def make(vocab_size: int = BYTES, *, sampled: bool = False, profile: Profile = INSTANT, **more: Any) -> SimExecutor:
    executor = SimExecutor(profile, text_for(vocab_size), vocab_size, sampled=sampled, **more)
    for number, name in enumerate("abcd"):
        executor.add_stream(name, Stream(list(range(10 * number, 10 * number + 10)), -2))
    return executor


def execute(executor: SimExecutor, *sequences: SequencePlan) -> ModelRunnerOutput:
    result = executor.execute(SchedulerOutput(list(sequences), sum(len(s.token_ids) for s in sequences)))
    assert isinstance(result, ModelRunnerOutput)
    return result


def run(executor: SimExecutor, *sequences: SequencePlan) -> np.ndarray:
    return execute(executor, *sequences).logits


def plan(name: str, tokens: Sequence[int], start: int, table: list[int], rows: int, best: bool = False) -> SequencePlan:
    return SequencePlan(name, list(tokens), start, table, rows, 0, best)


def test_ids_where_nothing_else_is_wanted_and_rows_for_the_others() -> None:
    executor = make()
    sequences = [plan("a", [7, 7], 0, [0], 1, True), plan("b", [7], 4, [1], 1), plan("c", [7], 3, [1], 0)]
    result = execute(executor, *sequences, plan("d", [7], 5, [1], 1, True))
    assert result.token_ids == [0, 34]
    assert result.logits.argmax(axis=1).tolist() == [13] and (result.logits > 0).sum() == 1
    result = execute(executor, plan("b", [7], 5, [1], 1, True), plan("d", [7], 6, [1], 1, True))
    assert result.token_ids == [14, 35] and result.logits.shape == (0, BYTES)


def test_of_each_row_one_token_stands_out_also_if_there_are_many() -> None:
    executor = make()
    rows = run(executor, plan("a", [7] * 6, 0, [0, 1], 4), plan("b", [7], 3, [2], 1))
    assert rows.argmax(axis=1).tolist() == [1, 2, 3, 4, 12]
    rows = run(executor, plan("b", [7], 4, [2], 1))
    assert rows.argmax(axis=1).tolist() == [13] and (rows > 0).sum() == 1
    assert run(executor, plan("a", [7] * 2, 0, [0, 1], 2)).shape == (2, BYTES)  # within a prompt: any


def test_chunks_and_blocks_do_not_matter_for_scores_but_a_wrong_table_does() -> None:
    executor = make(sampled=True)
    first = run(executor, plan("a", b"abcdef", 0, [0, 1], 1)).copy()
    run(executor, plan("b", b"abcd", 0, [7, 5], 0))
    assert (first == run(executor, plan("b", b"ef", 4, [7, 5], 1))).all()
    run(executor, plan("c", b"wxyz", 0, [9, 8], 0))
    assert not (first == run(executor, plan("b", b"ef", 4, [9, 5], 1))).all()
    assert run(executor, plan("b", [1], 0, [2], 0)).shape == (0, BYTES)


def test_scores_to_sample_from() -> None:
    executor = make(sampled=True)
    first = run(executor, plan("a", b"abc", 0, [0], 1)).copy()
    ids = text_for(BYTES).ids
    assert first[0, ids].min() >= 0 and first[0, ids].max() < 8
    assert np.delete(first[0], ids).max() < -100
    assert (first == run(executor, plan("a", b"abc", 0, [4], 1))).all()
    assert not (first == run(executor, plan("a", b"abd", 0, [4], 1))).all()


@pytest.mark.parametrize("slow", [False, True])
def test_a_step_takes_its_time_or_longer_but_not_both(slow: bool) -> None:
    now = iter([100.0, 100.5 if slow else 100.001])
    slept: list[float] = []
    costs = Profile(step_us=10_000, sequence_us=1000, prefill_us_per_token=100, prefill_us_per_request=10)
    executor = make(profile=costs, clock=lambda: next(now), sleep=slept.append)
    execute(executor, plan("a", b"abc", 0, [0], 1, True), plan("b", [1], 0, [1], 1, True))
    assert slept == ([] if slow else [pytest.approx(0.01 + 2 * 0.001 + 4 * 0.0001 + 2 * 0.00001 - 0.001)])


def test_a_prompt_is_begun_once_and_a_decoded_token_is_none_of_it() -> None:
    executor = make()
    seen = []
    executor.at_step = lambda plan, begun: seen.append((len(plan.sequences), begun))
    execute(executor, plan("a", b"ab", 0, [0], 0), plan("b", b"x", 0, [1], 1))
    execute(executor, plan("a", b"c", 2, [0], 1), plan("b", b"x", 1, [1], 1))
    execute(executor, plan("a", b"abcd", 0, [0], 1))  # after a preemption
    executor.drop_stream("c")
    execute(executor, plan("d", b"x", 0, [1], 1))
    assert seen == [(2, 2), (2, 0), (1, 0), (1, 1)]


def test_a_step_for_nobody() -> None:
    assert run(make(), plan("dummy", [0], 0, [3], 1)).shape == (1, BYTES)


def test_elsewhere_the_time_passes_in_a_thread_of_its_own() -> None:
    executor = make(profile=Profile(step_us=100), elsewhere=True)
    future = executor.execute(SchedulerOutput([plan("a", b"abc", 0, [0], 1, True)], 3))
    assert not isinstance(future, ModelRunnerOutput) and future.result(10).token_ids == [1]
    executor.shutdown()
