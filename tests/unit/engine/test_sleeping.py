"""Sleep and wake up of any engine: what is given back, what is missing, what requests do meanwhile."""

from typing import Any

import pytest

from muro.engine.interface import EngineInfo, Memory, operation
from muro.errors import ConfigError
from muro.testing.harness import StepHarness, generate_request
from muro.wire.output import FinishReason, UtilityOutput
from tests.support.scripted import Scripted, assert_nothing_left

ABORT, ERROR, LENGTH = FinishReason.ABORT, FinishReason.ERROR, FinishReason.LENGTH
NIL, TRUE, FALSE = [None, None], [None, True], [None, False]


class Sleeper(Scripted):
    """Notes what it gives back and gets again."""

    def __init__(self, *releasable: Memory) -> None:
        super().__init__()
        self.releasable = releasable
        self.done: list[str] = []
        self.fails: Exception | None = None

    def info(self) -> EngineInfo:
        return EngineInfo(max_model_len=self.max_model_len, releasable=self.releasable)

    def release_memory(self, kind: Memory) -> None:
        self._do("-", kind)

    def restore_memory(self, kind: Memory) -> None:
        self._do("+", kind)

    def _do(self, what: str, kind: Memory) -> None:
        error, self.fails = self.fails, None
        if error is not None:
            raise error
        self.done.append(what + kind)

    @operation
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.done.append(f"reset {reset_running_requests}")
        return True


@pytest.fixture
def engine() -> Sleeper:
    return Sleeper("kv_cache", "weights")


def call(harness: StepHarness, method: str, *args: Any) -> UtilityOutput:
    answer = harness.answer(harness.call(method, *args))
    assert answer is not None, "no answer yet"
    return answer


def failure(harness: StepHarness, method: str, *args: Any) -> str:
    text = call(harness, method, *args).failure_message
    assert text is not None
    return text


def running(harness: StepHarness, *ids: str) -> None:
    for request_id in ids:
        harness.submit(generate_request(request_id, max_tokens=4))
    harness.step()


@pytest.mark.parametrize(
    ("level", "released", "restored"),
    [
        (0, [], []),
        (1, ["reset False", "-kv_cache"], ["+kv_cache"]),
        (2, ["reset False", "-kv_cache", "-weights"], ["+weights", "+kv_cache"]),
    ],
)
def test_a_level_gives_back_what_it_says_and_waking_gets_it_again(
    harness: StepHarness, engine: Sleeper, level: int, released: list[str], restored: list[str]
) -> None:
    running(harness, "a")
    assert call(harness, "sleep", level, "abort").result == NIL
    assert harness.finishes("a") == [ABORT] and engine.done == released
    assert call(harness, "is_sleeping").result == call(harness, "is_scheduler_paused").result == TRUE
    assert harness.host.phase() == "paused"
    engine.done.clear()
    assert call(harness, "wake_up").result == TRUE
    assert engine.done == restored
    assert call(harness, "is_sleeping").result == call(harness, "is_scheduler_paused").result == FALSE
    assert_nothing_left(harness, engine)


def test_who_comes_while_it_sleeps_waits(harness: StepHarness, engine: Sleeper) -> None:
    call(harness, "sleep")
    harness.submit(generate_request("a"))
    assert harness.host.num_held == 1 and not harness.host.has_work()
    call(harness, "wake_up", None)
    harness.run()
    assert harness.finishes("a") == [LENGTH]
    assert_nothing_left(harness, engine)


def test_running_requests_are_waited_for(harness: StepHarness, engine: Sleeper) -> None:
    running(harness, "a")
    asleep = harness.call("sleep", 2, "wait")
    assert harness.answer(asleep) is None and not engine.done
    assert call(harness, "is_sleeping").result == FALSE, "not yet"
    harness.run()
    assert harness.finishes("a") == [LENGTH] and engine.done[-1] == "-weights"
    answer = harness.answer(asleep)
    assert answer is not None and answer.result == NIL
    assert call(harness, "is_sleeping").result == TRUE


def test_frozen_ones_go_on_and_lose_what_was_computed(harness: StepHarness, engine: Sleeper) -> None:
    running(harness, "a")
    call(harness, "sleep", 1, "keep")
    assert engine.done == ["reset True", "-kv_cache"] and not harness.host.has_work()
    call(harness, "wake_up")
    harness.run()
    assert harness.finishes("a") == [LENGTH] and len(harness.tokens("a")) == 4


def test_tags_bring_memory_back_one_by_one(harness: StepHarness, engine: Sleeper) -> None:
    call(harness, "sleep", 2)
    engine.done.clear()
    assert call(harness, "wake_up", ["weights"]).result == FALSE
    assert call(harness, "is_sleeping").result == TRUE
    assert "without kv_cache" in failure(harness, "wake_up", ["scheduling"])
    assert call(harness, "wake_up", ["weights"]).result == FALSE, "it is there"
    assert call(harness, "wake_up", ["kv_cache"]).result == TRUE
    assert engine.done == ["+weights", "+kv_cache"]
    assert call(harness, "is_scheduler_paused").result == FALSE


def test_a_sleep_without_a_loss_ends_by_the_tag_of_scheduling(harness: StepHarness) -> None:
    call(harness, "sleep", 0)
    assert call(harness, "wake_up", ["weights"]).result == FALSE
    assert call(harness, "wake_up", ["scheduling"]).result == TRUE
    call(harness, "sleep", 0)
    assert call(harness, "resume_scheduler").result == NIL, "it is but a pause"
    assert call(harness, "is_sleeping").result == FALSE


def test_a_deeper_sleep_and_one_less_deep(harness: StepHarness, engine: Sleeper) -> None:
    call(harness, "sleep", 1)
    call(harness, "sleep", 2)
    call(harness, "sleep", 0)
    assert [done for done in engine.done if done[0] == "-"] == ["-kv_cache", "-weights"]
    assert "sleeps at level 2" in failure(harness, "resume_scheduler")
    call(harness, "wake_up")
    assert call(harness, "is_sleeping").result == FALSE


def test_no_pause_lets_frozen_requests_run_without_memory(harness: StepHarness, engine: Sleeper) -> None:
    running(harness, "a")
    call(harness, "sleep", 1, "keep")
    call(harness, "pause_scheduler", "wait", False)
    assert not harness.host.has_work()
    call(harness, "pause_scheduler", "abort", False)
    assert harness.finishes("a") == [ABORT]
    call(harness, "wake_up")
    assert_nothing_left(harness, engine)


def test_waking_what_is_awake_is_nothing(harness: StepHarness, engine: Sleeper) -> None:
    assert call(harness, "wake_up").result == TRUE
    call(harness, "pause_scheduler", "keep", False)
    assert call(harness, "wake_up").result == TRUE
    assert call(harness, "is_scheduler_paused").result == TRUE, "it did not sleep"
    assert not engine.done


def test_waking_one_who_is_about_to_sleep(harness: StepHarness, engine: Sleeper) -> None:
    running(harness, "a")
    asleep = harness.call("sleep", 1, "wait")
    assert call(harness, "wake_up").result == TRUE
    answer = harness.answer(asleep)
    assert answer is not None and "somebody resumed" in (answer.failure_message or "")
    harness.run()
    assert harness.finishes("a") == [LENGTH] and not engine.done


@pytest.mark.parametrize("releasable", [(), ("kv_cache",)])
def test_what_the_engine_cannot_do_is_refused_before_anything_is_paused(releasable: tuple[Memory, ...]) -> None:
    harness = StepHarness(Sleeper(*releasable))
    running(harness, "a")
    assert "cannot give" in failure(harness, "sleep", 2)
    assert call(harness, "is_scheduler_paused").result == FALSE
    harness.run()
    assert harness.finishes("a") == [LENGTH]
    assert call(harness, "sleep", 0).result == NIL


def test_memory_that_does_not_come_back_can_be_asked_for_again(harness: StepHarness, engine: Sleeper) -> None:
    call(harness, "sleep", 2)
    engine.fails = ConfigError("the file is gone")
    assert "the file is gone" in failure(harness, "wake_up")
    assert call(harness, "is_sleeping").result == TRUE
    assert call(harness, "wake_up").result == TRUE


def test_memory_that_is_not_let_go(harness: StepHarness, engine: Sleeper) -> None:
    engine.fails = OSError("busy")
    assert "busy" in failure(harness, "sleep", 1)
    assert call(harness, "wake_up").result == TRUE
    harness.submit(generate_request("a"))
    harness.run()
    assert harness.finishes("a") == [LENGTH] and "+kv_cache" not in engine.done


@pytest.mark.parametrize(
    ("method", "args", "named"),
    [("sleep", [3], "level"), ("sleep", [1, "now"], "mode"), ("wake_up", [["cache"]], "'cache'")],
)
def test_arguments_that_mean_nothing(harness: StepHarness, method: str, args: list[Any], named: str) -> None:
    assert named in failure(harness, method, *args)
    assert call(harness, "is_scheduler_paused").result == FALSE


@pytest.mark.parametrize("operation", ["pause_scheduler", "pause_generation"])
def test_the_cache_can_be_given_back_in_a_pause(harness: StepHarness, engine: Sleeper, operation: str) -> None:
    running(harness, "a")
    assert "not paused" in failure(harness, "release_kv_cache_memory") and not engine.done
    call(harness, operation, "keep", False)
    assert call(harness, "release_kv_cache_memory").result == NIL
    assert engine.done == ["reset True", "-kv_cache"]
    assert call(harness, "is_sleeping").result == TRUE
    assert call(harness, "wake_up", ["kv_cache"]).result == TRUE
    harness.run()
    assert harness.finishes("a") == [LENGTH] and len(harness.tokens("a")) == 4


def test_the_cache_is_given_back_once_a_pause_has_begun(harness: StepHarness, engine: Sleeper) -> None:
    running(harness, "a")
    paused = harness.call("pause_scheduler", "wait")
    released = harness.call("release_kv_cache_memory")
    assert harness.answer(paused) is None and harness.answer(released) is None and "-kv_cache" not in engine.done
    harness.run()
    assert harness.finishes("a") == [LENGTH] and engine.done[-1] == "-kv_cache"
    answer = harness.answer(released)
    assert answer is not None and answer.result == NIL
