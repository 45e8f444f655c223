"""EngineHost and everything but single requests: endings, failures, statistics, operations."""

import threading
from typing import Any

import pytest

from muro.engine.events import WAKEUP, Call, ExecutorFailed, GivenUp, Routed, StartWave
from muro.errors import EngineDeadError, InternalError
from muro.ids import ClientIndex
from muro.testing.harness import StepHarness, generate_request
from muro.wire.failure import SHUTTING_DOWN
from muro.wire.output import FinishReason
from muro.wire.stats import SchedulerStats
from tests.support.scripted import Scripted, assert_nothing_left

ABORT, LENGTH = FinishReason.ABORT, FinishReason.LENGTH
C0, C1 = ClientIndex(0), ClientIndex(1)


# Ending


def test_abort_all_ends_everything_with_abort_a_message_per_client(harness: StepHarness, engine: Scripted) -> None:
    for client, request_id in ((0, "a"), (0, "b"), (1, "a")):
        harness.submit(generate_request(request_id), client=client)
    routed = harness.host.abort_all()
    assert [(r.client, r.message.finished_requests) for r in routed] == [(C0, ["a", "b"]), (C1, ["a"])]
    assert all(o.finish_reason is ABORT and o.new_token_ids == [] for r in routed for o in r.message.outputs)
    assert harness.host.abort_all() == []
    assert_nothing_left(harness, engine)


def test_on_the_way_out_requests_end_with_abort_and_calls_fail(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("running", max_tokens=2))
    harness.host.stop_accepting()
    harness.submit(generate_request("late"))
    answer = harness.answer(harness.call("is_sleeping"))
    assert harness.finishes("late") == [ABORT]
    assert answer is not None and answer.failure_message == SHUTTING_DOWN
    harness.run()
    assert harness.finishes("running") == [LENGTH], "what runs may finish"
    assert_nothing_left(harness, engine)


def test_requests_that_the_sender_has_ended_are_forgotten_and_settled(harness: StepHarness, engine: Scripted) -> None:
    for client, request_id in ((0, "a"), (0, "b"), (1, "a")):
        harness.submit(generate_request(request_id), client=client)
    (settled,) = harness.host.apply(GivenUp(C0, ["a", "gone"]))
    assert (settled.client, settled.settled, settled.message.outputs) == (C0, ["a", "gone"], [])
    assert harness.host.num_live == 2
    harness.run()
    assert (harness.outputs("a"), harness.finishes("b")) == ([], [LENGTH])
    assert harness.finishes("a", client=1) == [LENGTH]
    assert_nothing_left(harness, engine)


def test_all_other_requests_of_a_client_that_does_not_read_end_with_abort(
    harness: StepHarness, engine: Scripted
) -> None:
    for client, request_id in ((0, "a"), (0, "b"), (1, "a")):
        harness.submit(generate_request(request_id), client=client)
    aborted, settled = harness.host.apply(GivenUp(C0, ["a"], everything=True))
    assert [(o.request_id, o.finish_reason) for o in aborted.message.outputs] == [("b", ABORT)]
    assert settled.settled == ["a"]
    assert harness.host.num_live == 1
    harness.run()
    assert_nothing_left(harness, engine)


def test_an_executor_that_failed_ends_the_engine(harness: StepHarness) -> None:
    with pytest.raises(EngineDeadError, match=r"the executor failed: OSError\('no device'\)") as caught:
        harness.host.apply(ExecutorFailed(OSError("no device")))
    assert isinstance(caught.value.__cause__, OSError) and caught.value.rank == 0
    with pytest.raises(InternalError, match="the input thread died"):
        harness.host.apply(ExecutorFailed(InternalError("the input thread died")))
    with pytest.raises(EngineDeadError, match="'lost'"):
        harness.host.apply(ExecutorFailed("lost"))


def test_events_that_change_nothing(harness: StepHarness) -> None:
    assert harness.host.apply(WAKEUP) == []
    assert harness.host.apply(StartWave(3)) == []


# Statistics


def test_statistics_go_with_one_message_of_a_step(harness: StepHarness) -> None:
    for client in (0, 1):
        harness.submit(generate_request("a"), client=client)
    routed, _ = harness.host.step()
    assert [(r.client, r.message.scheduler_stats is not None) for r in routed] == [(C0, True), (C1, False)]


def test_a_step_without_outputs_still_reports(harness: StepHarness) -> None:
    routed, executed = harness.host.step()
    assert not executed
    assert [(r.client, r.message.outputs) for r in routed] == [(C0, [])]
    assert routed[0].message.scheduler_stats == SchedulerStats()


@pytest.mark.cases
def test_gauges_come_down_after_a_mass_abort(harness: StepHarness) -> None:
    names = [f"r{i}" for i in range(100)]
    for name in names:
        harness.submit(generate_request(name))
    harness.step()
    assert harness.stats()[-1].num_running_reqs == 100
    harness.abort(*names)
    harness.messages += harness.host.went_idle()
    assert harness.stats()[-1].num_running_reqs == 0
    assert harness.host.went_idle() == [], "once is enough"


def test_statistics_can_be_left_out(engine: Scripted) -> None:
    harness = StepHarness(engine, log_stats=False)
    harness.submit(generate_request("a"))
    harness.run()
    assert harness.stats() == []


# Operations


def test_an_operation_answers_its_caller(harness: StepHarness) -> None:
    (routed,) = harness.host.apply(Call(C1, 2**64 - 1, "get_supported_tasks", []))
    assert (routed.client, routed.method) == (C1, "get_supported_tasks")
    answer = routed.message.utility_output
    assert answer is not None
    assert (answer.call_id, answer.failure_message, answer.result) == (2**64 - 1, None, [None, ["generate"]])


@pytest.mark.parametrize(
    ("method", "args", "words"),
    [
        ("explode", [], "Call to explode method failed: boom"),
        ("explode", [1], "was called with 1 arguments"),
        ("shutdown", [], "Call to shutdown method failed: no operation 'shutdown'"),
        ("reset_prefix_cache", ["perhaps"], "argument reset_running_requests"),
    ],
)
def test_a_failure_is_an_answer(harness: StepHarness, method: str, args: list[Any], words: str) -> None:
    answer = harness.answer(harness.call(method, *args))
    assert answer is not None and answer.result is None
    assert words in (answer.failure_message or "")


def late_answer(harness: StepHarness, engine: Scripted) -> int:
    call = harness.call("later", client=1)
    assert harness.answer(call, client=1) is None, "nothing is said before it is done"
    return call


def test_a_future_answers_when_it_is_done_from_whatever_thread(harness: StepHarness, engine: Scripted) -> None:
    call = late_answer(harness, engine)
    thread = threading.Thread(target=engine.future.set_result, args=([1, 2],))
    thread.start()
    thread.join()
    answer = harness.answer(call, client=1)
    assert answer is not None and answer.result == [None, [1, 2]]


def test_a_future_that_fails_answers_so(harness: StepHarness, engine: Scripted) -> None:
    call = late_answer(harness, engine)
    engine.future.set_exception(ValueError("not now"))
    answer = harness.answer(call, client=1)
    assert answer is not None and answer.failure_message == "Call to later method failed: not now"


def test_a_future_that_is_cancelled_answers_so(harness: StepHarness, engine: Scripted) -> None:
    call = late_answer(harness, engine)
    assert engine.future.cancel()
    answer = harness.answer(call, client=1)
    assert answer is not None and answer.failure_message == "Call to later method failed: CancelledError"


def test_a_future_that_is_done_already_answers_at_once(harness: StepHarness, engine: Scripted) -> None:
    engine.future.set_result(3)
    answer = harness.answer(harness.call("later"))
    assert answer is not None and answer.result == [None, 3]


def test_late_answers_know_their_operation(engine: Scripted) -> None:
    harness = StepHarness(engine)
    harness.call("later")
    engine.future.set_result(object())
    posted: list[Routed] = harness.messages
    assert [routed.method for routed in posted] == ["later"]
