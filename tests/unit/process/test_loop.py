"""The busy loop with a real host, a real engine and a real progress page.

Where a test wants to see the loop fall asleep, its input queue raises instead of blocking for ever.
"""

import threading

import pytest

from muro.engine.events import Abort, Call, ExecutorFailed, Routed
from muro.errors import EngineDeadError
from muro.ids import ClientIndex
from muro.process.lifecycle import State
from muro.process.loop import AHEAD_YIELD, NO_FORWARD_YIELD
from muro.process.policy import Independent
from muro.process.queues import AHEAD
from muro.transport.page import ProgressPage
from muro.wire.failure import SHUTTING_DOWN
from muro.wire.output import FinishReason
from muro.wire.stats import SchedulerStats
from tests.support.deadline import until
from tests.support.looping import Rig

C0 = ClientIndex(0)
ABORT, LENGTH = FinishReason.ABORT, FinishReason.LENGTH


class Recorder(Independent):
    """A tick policy that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool]] = []

    def after_step(self, executed: bool, has_work: bool) -> list[Routed]:
        self.seen.append((executed, has_work))
        return []


# Taking input


def test_work_is_done_and_then_the_loop_sleeps(rig: Rig) -> None:
    rig.add("a")
    rig.run_until_asleep()
    assert rig.finishes() == {"a": [LENGTH]}
    assert rig.admission.requests == 0


def test_the_queue_is_emptied_before_a_step(rig: Rig) -> None:
    for name in "abc":
        rig.add(name)
    rig.engine.during = lambda step: rig.add("d") if step == 1 else None
    rig.run_until_asleep()
    assert rig.engine.batches == [3, 4, 4, 1]


def test_while_there_is_work_nothing_blocks(rig: Rig) -> None:
    rig.add("a", max_tokens=AHEAD)
    rig.run_until_asleep()
    assert rig.inbox.reads == ["blocking", "blocking"], "to get the first event, and to sleep"


def test_a_loop_that_runs_ahead_of_the_sender_lets_it_work_and_goes_on(rig: Rig) -> None:
    rig.add("a", max_tokens=AHEAD + 4)
    rig.run_until_asleep()  # nobody takes from the outbox here
    assert rig.inbox.reads == ["blocking", *[f"up to {AHEAD_YIELD} s"] * 3, "blocking"]
    assert rig.finishes() == {"a": [LENGTH]}


def test_before_it_sleeps_the_last_statistics_go_out(rig: Rig) -> None:
    rig.add("a", max_tokens=9)
    rig.engine.during = lambda step: rig.inbox.put(Abort(C0, ["a"])) if step == 2 else None
    rig.run_until_asleep()
    assert rig.sent()[-1].message.scheduler_stats == SchedulerStats(num_running_reqs=0)
    assert rig.inbox.reads.count("blocking") == 2, "it does not come back to say it again"


def test_only_the_last_word_before_idling_goes_out_without_the_queue(rig: Rig) -> None:
    """Whatever has a step to overlap with goes through the sender."""
    rig.sent_now = []
    rig.add("a", max_tokens=3)
    rig.run_until_asleep()
    queued = [len(routed.message.outputs) for routed in rig.sent()]
    assert queued == [1, 1]
    assert [output.finish_reason for r in rig.sent_now for output in r.message.outputs] == [LENGTH]


def test_without_a_forward_it_waits_a_little_and_goes_on(rig: Rig) -> None:
    rig.add("a", max_tokens=1)
    rig.engine.stalled = 3
    rig.run_until_asleep()
    assert rig.inbox.reads == ["blocking", *[f"up to {NO_FORWARD_YIELD} s"] * 3, "blocking"]
    assert rig.finishes() == {"a": [LENGTH]}


def test_that_wait_ends_with_an_event(rig: Rig) -> None:
    rig.add("a", max_tokens=1)
    rig.engine.stalled = 1
    rig.engine.during = lambda step: rig.add("b", max_tokens=1) if step == 1 else None
    rig.run_until_asleep()
    assert rig.engine.batches == [2]


def test_an_idle_loop_sleeps_until_it_is_woken(page: ProgressPage) -> None:
    rig = Rig(page)
    rig.inbox.may_block = True
    thread = threading.Thread(target=rig.loop.run)
    thread.start()
    rig.add("a", max_tokens=2)
    until(lambda: page.read().steps_ended == 2)
    until(lambda: rig.inbox.reads == ["blocking"] * 2)
    rig.inbox.wake()  # nothing to do
    until(lambda: rig.inbox.reads == ["blocking"] * 3)
    assert page.read().steps_ended == 2, "being woken is no step"
    rig.ask_to_stop()
    thread.join(10)
    assert not thread.is_alive() and rig.lifecycle.state is State.STOPPED


# Around a step


def test_an_abort_that_arrives_during_a_forward_takes_effect_in_it(rig: Rig) -> None:
    abort = Abort(C0, ["a"])

    def arrives(step: int) -> None:
        if step == 2:
            rig.host.abort_soon(abort)
            rig.inbox.put(abort)

    rig.engine.during = arrives
    rig.add("a", max_tokens=9)
    rig.add("b", max_tokens=4)
    rig.run_until_asleep()
    tokens = [o.request_id for r in rig.sent() for o in r.message.outputs]
    assert tokens.count("a") == 1 and tokens.count("b") == 4
    assert rig.engine.aborted == ["a"]


def test_the_policy_hears_of_every_step(page: ProgressPage) -> None:
    policy = Recorder()
    rig = Rig(page, policy=policy)
    rig.add("a", max_tokens=2)
    rig.engine.stalled = 1
    rig.run_until_asleep()
    assert policy.seen == [(False, True), (True, True), (True, False)]


def test_an_executor_that_failed_ends_the_loop(rig: Rig) -> None:
    rig.add("a")
    rig.inbox.put(ExecutorFailed(OSError("no device")))
    with pytest.raises(EngineDeadError, match="no device"):
        rig.loop.run()


def test_a_step_that_fails_ends_the_loop_and_shows_on_the_page(rig: Rig) -> None:
    rig.add("a")
    rig.engine.fail_step = RuntimeError("dead")
    with pytest.raises(RuntimeError, match="dead"):
        rig.loop.run()
    assert rig.page.read().stepping


# Stopping


def test_without_time_to_drain_everything_ends_at_once(rig: Rig) -> None:
    rig.add("a", max_tokens=9)
    rig.add("b", max_tokens=9)

    def asked(step: int) -> None:
        rig.ask_to_stop()
        rig.add("queued")

    rig.engine.during = asked
    rig.loop.run()
    assert rig.finishes() == {"a": [ABORT], "b": [ABORT], "queued": [ABORT]}
    assert rig.engine.steps == 1 and rig.lifecycle.state is State.STOPPED
    assert rig.admission.requests == 0 and not rig.engine.held


def test_a_drain_lets_running_requests_finish_and_nothing_else_begin(page: ProgressPage) -> None:
    rig = Rig(page, drain=10.0)
    rig.add("a", max_tokens=6)

    def during(step: int) -> None:
        if step == 1:
            rig.ask_to_stop()
        else:
            assert page.read().phase == "draining"
        if step == 3:
            rig.add("late")
            rig.inbox.put(Call(C0, 7, "is_sleeping", []))

    rig.engine.during = during
    rig.loop.run()
    sent = rig.sent()
    ends = {o.request_id: o.finish_reason for r in sent for o in r.message.outputs if o.finish_reason is not None}
    answers = [r.message.utility_output for r in sent if r.message.utility_output is not None]
    assert ends == {"a": LENGTH, "late": ABORT}
    assert [(a.call_id, a.failure_message) for a in answers] == [(7, SHUTTING_DOWN)]
    assert rig.lifecycle.state is State.STOPPED


def test_at_the_limit_of_a_drain_the_rest_ends(page: ProgressPage) -> None:
    rig = Rig(page, drain=10.0)
    rig.add("short", max_tokens=3)
    rig.add("long", max_tokens=1000)

    def during(step: int) -> None:
        rig.clock.advance(1.0)
        rig.ask_to_stop()  # again and again: that gives no more time

    rig.engine.during = during
    rig.loop.run()
    assert rig.finishes() == {"short": [LENGTH], "long": [ABORT]}
    assert rig.engine.steps == 11, "one before it was asked to stop, ten until the limit"


def test_a_drain_of_an_engine_that_cannot_go_on_ends_at_the_limit(page: ProgressPage) -> None:
    rig = Rig(page, drain=1.0)
    rig.engine.stalled = 10**9
    rig.add("a")

    def during(step: int) -> None:
        rig.stop = True
        rig.clock.advance(0.25)

    rig.engine.during = during
    rig.loop.run()
    assert rig.finishes() == {"a": [ABORT]}
    assert len(rig.inbox.reads) == 1 + rig.engine.steps, "it waits after each step in vain"


def test_an_idle_engine_stops_at_once_however_long_it_may_drain(page: ProgressPage) -> None:
    rig = Rig(page, drain=1000.0)
    rig.ask_to_stop()
    rig.loop.run()
    assert rig.lifecycle.state is State.STOPPED and rig.engine.steps == 0


def test_what_is_still_queued_after_the_end_gets_its_answer(rig: Rig) -> None:
    rig.ask_to_stop()
    rig.loop.run()
    rig.add("late")
    rig.inbox.put(Call(C0, 1, "is_sleeping", []))
    rig.inbox.put(ExecutorFailed(OSError("released its device")))
    rig.inbox.put(Abort(C0, ["late"]))
    rig.add("later")
    rig.loop.reject_rest()
    sent = rig.sent()
    assert [o.request_id for r in sent for o in r.message.outputs] == ["late", "later"]
    assert [r.message.utility_output.failure_message for r in sent if r.message.utility_output] == [SHUTTING_DOWN]
    assert rig.admission.requests == 0


@pytest.mark.parametrize("drain", [0.0, 5.0])
def test_an_engine_that_fails_while_it_stops_fails(page: ProgressPage, drain: float) -> None:
    rig = Rig(page, drain=drain)
    rig.add("a")
    rig.ask_to_stop()
    rig.inbox.put(ExecutorFailed(OSError("no device")))
    with pytest.raises(EngineDeadError):
        rig.loop.run()
