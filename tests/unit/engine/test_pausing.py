"""Pause and resume of an engine that knows nothing of them: who runs, who is held back, who is answered when."""

from typing import Any

import pytest

from muro.engine.interface import operation
from muro.errors import RequestFailedError
from muro.testing.harness import StepHarness, generate_request
from muro.wire.output import FinishReason, UtilityOutput
from tests.support.scripted import Scripted, assert_nothing_left

ABORT, ERROR, LENGTH = FinishReason.ABORT, FinishReason.ERROR, FinishReason.LENGTH
NIL = [None, None]


def answered(harness: StepHarness, call: int) -> UtilityOutput:
    answer = harness.answer(call)
    assert answer is not None, "no answer yet"
    return answer


def is_paused(harness: StepHarness) -> Any:
    result = answered(harness, harness.call("is_scheduler_paused")).result
    assert result is not None
    return result[1]


def running(harness: StepHarness, *ids: str) -> None:
    for request_id in ids:
        harness.submit(generate_request(request_id, max_tokens=4))
    harness.step()


def test_abort_ends_what_runs_and_then_answers(harness: StepHarness, engine: Scripted) -> None:
    running(harness, "a", "b")
    before = len(harness.messages)
    pause = harness.call("pause_scheduler", "abort", True)
    said = [routed.message for routed in harness.messages[before:]]
    assert [(o.request_id, o.finish_reason) for o in said[0].outputs] == [("a", ABORT), ("b", ABORT)]
    assert [m.utility_output is not None for m in said] == [False, True], "the answer comes last"
    assert answered(harness, pause).result == NIL
    assert is_paused(harness) and harness.host.phase() == "paused"
    assert_nothing_left(harness, engine)


def test_wait_lets_them_finish_and_answers_behind_their_last_output(harness: StepHarness, engine: Scripted) -> None:
    running(harness, "a")
    pause = harness.call("pause_scheduler", "wait", False)
    assert is_paused(harness) and harness.answer(pause) is None
    assert harness.host.phase() is None, "it still works"
    harness.submit(generate_request("later"))
    while harness.host.has_work():
        harness.step()
    assert harness.finishes("a") == [LENGTH] and len(harness.tokens("a")) == 4
    assert answered(harness, pause).result == NIL
    assert harness.messages[-1].message.utility_output is not None
    assert harness.host.phase() == "paused" and not harness.outputs("later") and "later" not in engine.added


def test_keep_freezes_and_resume_goes_on_where_it_was(harness: StepHarness, engine: Scripted) -> None:
    running(harness, "a")
    assert answered(harness, harness.call("pause_scheduler", "keep", False)).result == NIL
    assert not harness.host.has_work() and harness.host.phase() == "paused"
    harness.submit(generate_request("b", (7,)))
    assert harness.host.num_held == 1
    assert answered(harness, harness.call("resume_scheduler")).result == NIL
    assert not is_paused(harness) and harness.host.phase() is None
    harness.run()
    assert harness.tokens("a") == [1, 2, 3, 1] and harness.tokens("b") == [7, 7, 7, 7]
    assert_nothing_left(harness, engine)


def test_what_is_held_back_goes_on_in_order_and_can_be_aborted(harness: StepHarness, engine: Scripted) -> None:
    harness.call("pause_scheduler")
    for request_id in "abcd":
        harness.submit(generate_request(request_id))
    harness.abort("b")
    harness.call("resume_scheduler")
    harness.run()
    assert engine.added == ["a", "c", "d"]
    assert not harness.outputs("b")
    assert_nothing_left(harness, engine)


def test_what_is_held_back_counts_against_the_limits(harness: StepHarness, engine: Scripted) -> None:
    harness.call("pause_scheduler", "keep", False)
    harness.submit(generate_request("a"))
    assert harness.admission.requests == 1
    harness.abort("a")
    assert_nothing_left(harness, engine)


def test_a_request_that_the_engine_refuses_when_it_is_resumed_is_told(harness: StepHarness, engine: Scripted) -> None:
    harness.call("pause_scheduler")
    harness.submit(generate_request("a"))
    engine.refuse_add = RequestFailedError("no room")
    harness.call("resume_scheduler")
    assert harness.finishes("a") == [ERROR]
    assert_nothing_left(harness, engine)


def test_the_same_id_twice_while_held_back_ends_as_a_whole(harness: StepHarness, engine: Scripted) -> None:
    harness.call("pause_scheduler")
    harness.submit(generate_request("a"))
    harness.submit(generate_request("a"))
    assert harness.finishes("a") == [ERROR]
    harness.call("resume_scheduler")
    assert_nothing_left(harness, engine)


def test_who_waits_for_a_pause_is_told_when_somebody_resumes_before_it(harness: StepHarness) -> None:
    running(harness, "a")
    pause = harness.call("pause_scheduler", "wait", False)
    harness.call("resume_scheduler")
    failure = answered(harness, pause).failure_message
    assert failure is not None and "somebody resumed before" in failure


def test_a_second_pause_decides(harness: StepHarness, engine: Scripted) -> None:
    running(harness, "a")
    waits = harness.call("pause_scheduler", "wait", False)
    aborts = harness.call("pause_scheduler", "abort", False)
    assert harness.finishes("a") == [ABORT]
    assert answered(harness, waits).result == answered(harness, aborts).result == NIL
    assert_nothing_left(harness, engine)


def test_frozen_requests_can_be_let_finish(harness: StepHarness, engine: Scripted) -> None:
    running(harness, "a")
    harness.call("pause_scheduler", "keep", False)
    pause = harness.call("pause_scheduler", "wait", False)
    assert harness.answer(pause) is None
    harness.run()
    assert harness.finishes("a") == [LENGTH] and answered(harness, pause).result == NIL


def test_resuming_what_is_not_paused_is_nothing(harness: StepHarness) -> None:
    assert answered(harness, harness.call("resume_scheduler")).result == NIL
    assert not is_paused(harness)


def test_an_unknown_mode_is_refused_and_pauses_nothing(harness: StepHarness) -> None:
    failure = answered(harness, harness.call("pause_scheduler", "stop")).failure_message
    assert failure is not None and "mode" in failure
    assert not is_paused(harness)


def test_at_the_end_held_requests_and_waiting_callers_are_told(harness: StepHarness, engine: Scripted) -> None:
    running(harness, "a")
    pause = harness.call("pause_scheduler", "wait", False)
    harness.submit(generate_request("held"))
    harness.host.stop_accepting()
    harness.messages += harness.host.abort_all()
    assert harness.finishes("a") == harness.finishes("held") == [ABORT]
    assert answered(harness, pause).failure_message == "Server shutting down"
    assert_nothing_left(harness, engine)


# The word of 0.33


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_pause_generation_refuses_new_requests_in_the_protocols_words(harness: StepHarness, mode: str) -> None:
    assert answered(harness, harness.call("pause_generation", mode, False)).result == NIL
    harness.submit(generate_request("a"))
    (output,) = harness.outputs("a")
    assert output.finish_reason is ERROR and output.error is not None
    assert (output.error.code, output.error.retryable) == ("engine_paused", True)
    harness.call("resume_scheduler")
    harness.submit(generate_request("b"))
    harness.run()
    assert harness.finishes("b") == [LENGTH]
    assert harness.admission.requests == 0


def test_pause_generation_that_keeps_holds_new_requests_back(harness: StepHarness) -> None:
    harness.call("pause_generation", "keep", False)
    harness.submit(generate_request("a"))
    harness.call("resume_scheduler")
    harness.run()
    assert harness.finishes("a") == [LENGTH]


# Caches


class Caching(Scripted):
    """Has a prefix cache that may refuse to be cleared."""

    def __init__(self, cleared: bool = True) -> None:
        super().__init__()
        self.cleared = cleared
        self.resets: list[tuple[bool, bool]] = []

    @operation
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.resets.append((reset_running_requests, reset_connector))
        return self.cleared


@pytest.mark.parametrize(("mode", "running_too"), [("abort", False), ("wait", False), ("keep", True)])
def test_the_cache_is_cleared_once_paused_if_wanted(mode: str, running_too: bool) -> None:
    engine = Caching()
    harness = StepHarness(engine)
    running(harness, "a")
    harness.call("pause_scheduler", mode, True)
    harness.run()
    assert engine.resets == [(running_too, False)]
    harness.call("pause_scheduler", mode, False)
    harness.run()
    assert len(engine.resets) == 1


def test_a_cache_that_cannot_be_cleared_is_told() -> None:
    harness = StepHarness(Caching(cleared=False))
    failure = answered(harness, harness.call("pause_scheduler")).failure_message
    assert failure is not None and "reset_prefix_cache could not be done" in failure
    assert is_paused(harness)


def test_an_engine_that_pauses_by_itself_is_left_alone() -> None:
    class Own(Scripted):
        @operation
        def pause_scheduler(self, mode: str = "abort", clear_cache: bool = True) -> str:
            return "my own"

        def phase(self) -> str | None:
            return "paused"

    harness = StepHarness(Own())
    assert answered(harness, harness.call("pause_scheduler")).result == [None, "my own"]
    assert harness.host.phase() == "paused" and harness.host.num_held == 0
