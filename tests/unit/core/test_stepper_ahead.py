"""stepper.py with scheduling ahead: when what is done, and that failures and aborts in between harm nobody.

That the outputs are equal is shown in `test_stepper_equal.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from muro.core.executor import Executor
from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.stepper import StepperEngine
from muro.errors import InternalError, RequestFailedError
from muro.testing.hashing import HashingExecutor
from muro.wire.output import EngineCoreOutput
from muro.wire.request import SamplingParams
from tests.support.lagging import LaggingExecutor
from tests.unit.core.test_stepper import Case, add, drive, shown

AHEAD = SchedulerConfig(async_scheduling=True, max_num_seqs=8, max_num_batched_tokens=16)


class Watched(HashingExecutor):
    """Calls back when a step is computed."""

    def __init__(self, look: Callable[[SchedulerOutput], None], num_blocks: int = 64) -> None:
        super().__init__(num_blocks=num_blocks)
        self._look = look

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self._look(plan)
        return super().execute(plan)


def alone(case: Case) -> list[object]:
    return shown(drive(StepperEngine(HashingExecutor()), [case])["0"])


def test_the_next_step_has_begun_when_outputs_are_given() -> None:
    lagging = LaggingExecutor(HashingExecutor())
    engine = StepperEngine(lagging, AHEAD)
    add(engine, "a", [1, 2], SamplingParams(seed=1, max_tokens=2))
    first = lagging._last
    outputs = engine.step(list).outputs
    assert len(outputs) == 1 and lagging._last is not first and not lagging._last.done()  # type: ignore[union-attr]
    assert engine.has_work()
    assert engine.step(list).outputs[0].finish_reason is not None
    assert not engine.has_work()


def test_the_last_step_of_a_request_is_not_followed_by_another() -> None:
    steps: list[SchedulerOutput] = []
    engine = StepperEngine(LaggingExecutor(Watched(steps.append)), AHEAD)
    drive(engine, [Case([1], SamplingParams(seed=1, max_tokens=3))])
    assert len(steps) == 3


def test_a_step_under_way_is_work_even_if_all_its_requests_were_aborted() -> None:
    engine = StepperEngine(LaggingExecutor(HashingExecutor()), AHEAD)
    add(engine, "a", [1], SamplingParams(max_tokens=9))
    engine.step(list)
    engine.abort_requests(["a"])
    assert engine.has_work()
    result = engine.step(list)
    assert (result.outputs, result.executed) == ([], True)
    assert not engine.has_work() and engine.stats().kv_cache_usage == 0.0


@pytest.mark.parametrize("late", [True, False])
def test_an_error_that_names_a_request_leaves_the_others_whole(late: bool) -> None:
    """Whether it comes with the future, or already when the step is given away."""

    def look(plan: SchedulerOutput) -> None:
        if any(s.request_id == "bad" and s.num_computed_tokens > 3 for s in plan.sequences):
            raise RequestFailedError("that one", request_id="bad")

    watched = Watched(look)
    executor: Executor = LaggingExecutor(watched) if late else watched
    engine = StepperEngine(executor, AHEAD)
    sampling = SamplingParams(seed=3, max_tokens=9)
    for name, prompt in (("good", [1, 2]), ("bad", [3]), ("other", [4, 5, 6])):
        add(engine, name, prompt, sampling)
    seen: list[EngineCoreOutput] = []
    raised = 0
    while engine.has_work():
        try:
            seen += engine.step(list).outputs
        except RequestFailedError as error:
            raised += 1
            engine.abort_requests([error.request_id or ""])  # as the host does
    assert raised == 1
    for name, prompt in (("good", [1, 2]), ("other", [4, 5, 6])):
        assert shown([o for o in seen if o.request_id == name]) == alone(Case(prompt, sampling))


def test_an_error_of_a_request_that_was_aborted_meanwhile_is_nobodys() -> None:
    def look(plan: SchedulerOutput) -> None:
        if any(s.request_id == "bad" and s.num_computed_tokens for s in plan.sequences):
            raise RequestFailedError("that one", request_id="bad")

    engine = StepperEngine(LaggingExecutor(Watched(look)), AHEAD)
    case = Case([1, 2], SamplingParams(seed=3, max_tokens=9))
    add(engine, "good", case.prompt, case.sampling)
    add(engine, "bad", [3], case.sampling)
    seen = [o for o in engine.step(list).outputs if o.request_id == "good"]
    engine.abort_requests(["bad"])  # the step that fails for it is under way
    while engine.has_work():
        seen += engine.step(list).outputs
    assert shown(seen) == alone(case)


def test_any_other_error_comes_out_of_the_next_step() -> None:
    def look(plan: SchedulerOutput) -> None:
        if plan.sequences[0].num_computed_tokens:
            raise InternalError("broken")

    engine = StepperEngine(Watched(look), AHEAD)
    add(engine, "a", [1], SamplingParams(max_tokens=9))
    assert len(engine.step(list).outputs) == 1, "what is done is given out first"
    with pytest.raises(InternalError, match="broken"):
        engine.step(list)


@pytest.mark.parametrize("ahead", [True, False])
def test_running_requests_begin_again_after_a_reset_and_say_the_same(ahead: bool) -> None:
    computed: list[int] = []
    executor = Watched(lambda plan: computed.append(plan.total_tokens))
    config = SchedulerConfig(async_scheduling=ahead)
    engine = StepperEngine(LaggingExecutor(executor) if ahead else executor, config)
    case = Case(list(range(20)), SamplingParams(seed=3, max_tokens=6))
    add(engine, "0", case.prompt, case.sampling)
    seen = engine.step(list).outputs
    assert engine.reset_prefix_cache(reset_running_requests=True) is True
    while engine.has_work():
        seen += engine.step(list).outputs
    assert shown(seen) == alone(case)
    assert computed == ([20, 1, 22, 1, 1, 1] if ahead else [20, 21, 1, 1, 1, 1]), "everything was computed again"
    assert engine.stats().prefix_cache_stats.preempted_hits == 0


def test_a_reset_leaves_running_requests_alone_if_it_is_to() -> None:
    computed: list[int] = []
    engine = StepperEngine(Watched(lambda plan: computed.append(plan.total_tokens)))
    add(engine, "a", [1] * 9, SamplingParams(seed=1, max_tokens=3))
    engine.step(list)
    assert engine.reset_prefix_cache() is True
    while engine.has_work():
        engine.step(list)
    add(engine, "b", [1] * 9, SamplingParams(seed=1, max_tokens=1))
    engine.step(list)
    assert computed == [9, 1, 1, 9], "b finds nothing of a"


class Slow(HashingExecutor):
    """Gives a future that somebody else completes, and notes when it is shut down."""

    def __init__(self) -> None:
        super().__init__()
        self.future: Future[ModelRunnerOutput] = Future()
        self.done_at_shutdown: bool | None = None

    def execute(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:  # type: ignore[override]
        self.future = Future()
        self.future.set_result(super().execute(plan))
        return self.future

    def shutdown(self) -> None:
        self.done_at_shutdown = self.future.done()


def test_shutting_down_with_a_step_under_way() -> None:
    executor = Slow()
    engine = StepperEngine(executor, AHEAD)
    add(engine, "a", [1], SamplingParams(max_tokens=9))
    engine.step(list)
    engine.shutdown()
    assert executor.done_at_shutdown


def test_an_executor_that_gives_no_futures_works_with_the_same_switch() -> None:
    case = Case([1, 2, 3], SamplingParams(seed=5, max_tokens=9))
    assert shown(drive(StepperEngine(HashingExecutor(), AHEAD), [case])["0"]) == alone(case)


def test_futures_are_of_use_without_the_switch() -> None:
    case = Case([1, 2, 3], SamplingParams(seed=5, max_tokens=9))
    assert shown(drive(StepperEngine(LaggingExecutor(HashingExecutor())), [case])["0"]) == alone(case)
