"""Control of a stepper: memory that goes and comes, a forward for nobody, methods that an executor lists."""

from __future__ import annotations

from typing import Any

import pytest

from muro.core.control import ExecutorControl
from muro.core.executor import Executor
from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.stepper import StepperEngine
from muro.engine.interface import Memory, operation
from muro.errors import CallFailedError, ConfigError, InternalError, InvalidRequestError
from muro.testing.harness import StepHarness, generate_request
from muro.testing.hashing import HashingExecutor
from muro.wire.output import FinishReason
from muro.wire.request import SamplingParams
from tests.support.lagging import LaggingExecutor
from tests.unit.core.test_stepper import add


class Forgetful(HashingExecutor):
    """Holds nothing while it sleeps, and nothing of before when it wakes."""

    releasable: tuple[Memory, ...] = ("kv_cache", "weights")

    def __init__(self, num_blocks: int = 64) -> None:
        super().__init__(num_blocks=num_blocks)
        self.gone: list[Memory] = []
        self.plans: list[SchedulerOutput] = []
        self.fails: Exception | None = None

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if self.gone:
            raise InternalError("it was asked to compute without memory")
        self.plans.append(plan)
        return super().execute(plan)

    def release_memory(self, kind: Memory) -> None:
        self.gone.append(kind)
        if kind == "kv_cache":
            self._cache[:] = -1

    def restore_memory(self, kind: Memory) -> None:
        if self.fails is not None:
            raise self.fails
        self.gone.remove(kind)

    @operation
    def scale(self, value: int, by: int = 2) -> int:
        return value * by

    def unlisted(self) -> None:
        """Cannot be called."""


class LaggingForgetful(LaggingExecutor):
    """The same, computing as late as it may."""

    releasable: tuple[Memory, ...] = ("kv_cache", "weights")

    def __init__(self, inner: Forgetful) -> None:
        super().__init__(inner)
        self.inner = inner

    def release_memory(self, kind: Memory) -> None:
        assert self._last is None or self._last.done(), "a step is under way"
        self.inner.release_memory(kind)

    def restore_memory(self, kind: Memory) -> None:
        self.inner.restore_memory(kind)


def engine_over(executor: Forgetful, ahead: bool = False) -> StepperEngine:
    config = SchedulerConfig(async_scheduling=ahead, max_num_seqs=8, max_num_batched_tokens=16)
    return StepperEngine(LaggingForgetful(executor) if ahead else executor, config)


def called(harness: StepHarness, method: str, *args: Any) -> Any:
    answer = harness.answer(harness.call(method, *args))
    assert answer is not None and answer.failure_message is None, answer
    assert answer.result is not None
    return answer.result[1]


def failure(harness: StepHarness, method: str, *args: Any) -> str:
    answer = harness.answer(harness.call(method, *args))
    assert answer is not None and answer.failure_message is not None
    return answer.failure_message


NAMES = "abc"


def submit_all(harness: StepHarness) -> None:
    for number, name in enumerate(NAMES):
        prompt = list(range(1, 12 + 9 * number))
        harness.submit(generate_request(name, prompt, max_tokens=12, temperature=1.0, seed=number, logprobs=number))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 3, 5, 9])
def test_frozen_requests_get_their_own_tokens_after_a_sleep(ahead: bool, level: int, steps: int) -> None:
    reference = StepHarness(engine_over(Forgetful()))
    submit_all(reference)
    reference.run()
    executor = Forgetful()
    harness = StepHarness(engine_over(executor, ahead))
    submit_all(harness)
    for _ in range(steps):
        harness.step()
    called(harness, "sleep", level, "keep")
    assert executor.gone == ["kv_cache", "weights"][:level]
    harness.submit(generate_request("late", [5, 6, 7]))
    called(harness, "wake_up")
    harness.run()
    for name in NAMES:
        assert harness.tokens(name) == reference.tokens(name)
        assert harness.finishes(name) == [FinishReason.LENGTH]
    assert len(harness.tokens("late")) == 4
    assert harness.stats()[-1].kv_cache_usage == 0.0


@pytest.mark.parametrize("ahead", [False, True])
def test_nothing_of_before_is_found_after_a_sleep(ahead: bool) -> None:
    harness = StepHarness(engine_over(Forgetful(), ahead))
    for name in "ab":
        harness.submit(generate_request(name, list(range(40))))
        harness.run()
        called(harness, "sleep", 1, "abort")
        called(harness, "wake_up")
    stats = harness.outputs("b")[0].prefill_stats
    assert stats is not None and stats.num_cached_tokens == 0
    assert harness.tokens("a") == harness.tokens("b")


def test_aborted_requests_leave_no_step_behind() -> None:
    executor = Forgetful()
    engine = engine_over(executor, ahead=True)
    harness = StepHarness(engine)
    harness.submit(generate_request("a", max_tokens=9))
    harness.step()
    called(harness, "sleep", 2, "abort")
    assert harness.finishes("a") == [FinishReason.ABORT]
    assert not engine.has_work() and engine.stats().kv_cache_usage == 0.0


def test_a_step_that_fails_while_it_is_waited_for_fails_again_when_it_is_computed_again() -> None:
    executor = Forgetful()
    engine = engine_over(executor, ahead=True)
    add(engine, "a", [1, 2], SamplingParams(max_tokens=9))
    engine.step(list)
    executor.gone.append("weights")  # so that it raises
    engine.release_memory("kv_cache")
    with pytest.raises(InternalError, match="without memory"):
        engine.step(list)


def test_memory_that_does_not_come_back() -> None:
    executor = Forgetful()
    harness = StepHarness(engine_over(executor))
    called(harness, "sleep", 2)
    executor.fails = ConfigError("the weights are gone")
    assert "the weights are gone" in failure(harness, "wake_up")
    assert "sleeps, without its kv_cache and weights" in failure(harness, "execute_dummy_batch")
    executor.fails = None
    assert called(harness, "wake_up") is True and not executor.gone
    called(harness, "execute_dummy_batch")


def test_an_executor_that_cannot_release() -> None:
    engine = StepperEngine(HashingExecutor())
    assert engine.info().releasable == ()
    with pytest.raises(InternalError):
        engine.release_memory("kv_cache")


# A forward for nobody


def test_a_dummy_batch_computes_one_token_and_leaves_nothing() -> None:
    executor = Forgetful(num_blocks=12)
    engine = engine_over(executor)
    harness = StepHarness(engine)
    harness.submit(generate_request("a", list(range(20)), max_tokens=8))
    harness.step()
    harness.step()
    before = engine.stats().kv_cache_usage
    called(harness, "execute_dummy_batch")
    assert [(s.token_ids, s.num_logits) for s in executor.plans[-1].sequences] == [([0], 1)]
    assert engine.stats().kv_cache_usage == before
    harness.run()
    alone = StepHarness(engine_over(Forgetful()))
    alone.submit(generate_request("a", list(range(20)), max_tokens=8))
    alone.run()
    assert harness.tokens("a") == alone.tokens("a") and not harness.outputs("dummy")


def test_a_step_under_way_is_as_good() -> None:
    executor = Forgetful()
    engine = engine_over(executor, ahead=True)
    add(engine, "a", [1, 2], SamplingParams(max_tokens=9))
    engine.step(list)
    computed = len(executor.plans)
    engine.execute_dummy_batch()
    assert len(executor.plans) == computed


def test_without_a_free_block_there_is_no_dummy_batch() -> None:
    executor = Forgetful(num_blocks=2)
    engine = engine_over(executor)
    add(engine, "a", list(range(7)), SamplingParams(max_tokens=2))
    engine.step(list)
    with pytest.raises(CallFailedError, match="every block"):
        engine.execute_dummy_batch()


def test_a_dummy_batch_of_an_executor_that_computes_elsewhere() -> None:
    inner = Forgetful()
    StepperEngine(LaggingExecutor(inner)).execute_dummy_batch()
    assert len(inner.plans) == 1


# Listed methods


def test_listed_methods_are_called_and_no_others() -> None:
    harness = StepHarness(engine_over(Forgetful()))
    assert called(harness, "collective_rpc", "scale", None, [4], None) == [8]
    assert called(harness, "collective_rpc", "scale", 1.5, [4], {"by": 3}) == [12]
    assert called(harness, "collective_rpc", "scale", None, [], {"value": 1}) == [2]
    for name in ("unlisted", "execute", "__class__", "scale.__call__"):
        said = failure(harness, "collective_rpc", name, None, [], None)
        assert f"there is no worker method {name!r}; this engine offers: scale" in said
    assert "argument value of scale" in failure(harness, "collective_rpc", "scale", None, ["x"], None)
    assert "argument kwargs" in failure(harness, "collective_rpc", "scale", None, [], [1])


def test_what_a_method_raises_is_told() -> None:
    class Failing(Forgetful):
        @operation
        def fail(self) -> None:
            raise OSError("no such device")

    harness = StepHarness(engine_over(Failing()))
    assert "no such device" in failure(harness, "collective_rpc", "fail")


def control_over(executor: Executor) -> ExecutorControl:
    engine = StepperEngine(executor)
    return engine._control


def test_arguments_that_do_not_fit() -> None:
    control = control_over(Forgetful())
    with pytest.raises(InvalidRequestError, match="scale"):
        control.call("scale", [1, 2, 3], {})
    with pytest.raises(CallFailedError, match="offers: none"):
        control_over(HashingExecutor()).call("scale", [], {})
