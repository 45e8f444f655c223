"""The supervisor: each thing that happens is told once, and what follows from it is done, in the order of time."""

from __future__ import annotations

import os
import threading
from typing import cast

import pytest

from muro.errors import CrashLoopError, StartupError
from muro.ids import EngineRank, Generation
from muro.launch.events import EngineDied, EngineGivenUp, EngineReplaced, EngineStalled, EngineStarted, Event
from muro.launch.restart import RankState
from muro.launch.spawn import Child
from muro.launch.supervisor import ENDING_TIMEOUT, NOTICE_PATIENCE, TICK, Supervisor
from muro.launch.watchdog import Verdict
from muro.transport.wakeup import Wakeup
from muro.wire.failure import FailureRecord
from tests.support.deadline import until
from tests.support.fake_engine import RESPONSE as READY
from tests.support.scripted_child import ScriptedChild
from tests.support.supervised import POLICY, Starts, Watched

FIRST, SECOND = EngineRank(0), EngineRank(1)
RECORD = FailureRecord("serving", "FaultError", "the device is gone")


def test_a_death_without_a_policy_is_told_once_and_final() -> None:
    first, second = ScriptedChild(), ScriptedChild()
    watched = Watched(first, second)
    assert watched.look() == []
    second.status = -9
    died, given_up = watched.look()
    assert isinstance(died, EngineDied) and (died.rank, died.generation, died.restarting) == (SECOND, 0, False)
    assert "SIGKILL" in died.error.message and died.error.retry_after is None
    assert given_up == EngineGivenUp(SECOND, died.error)
    assert watched.look(100) == []
    assert first.did == [] and not watched.supervisor.restarts


def test_a_policy_without_a_way_to_start_is_none() -> None:
    child = ScriptedChild()
    watched = Watched(child, policy=POLICY)
    child.status = -9
    assert isinstance(watched.look()[-1], EngineGivenUp)


def test_a_successor_is_started_after_the_back_off() -> None:
    child, successor = ScriptedChild(), ScriptedChild()
    starts = Starts(successor)
    watched = Watched(child, policy=POLICY, replace=starts)
    child.status = -11
    (died,) = watched.look()
    assert isinstance(died, EngineDied) and died.restarting and died.error.restarting
    assert died.error.retry_after == 2.0  # the back-off, and a guess at the start
    assert watched.look(0.9) == [] and starts.asked == []
    assert watched.supervisor.status(FIRST).state is RankState.BACKING_OFF  # type: ignore[union-attr]
    (started,) = watched.look(0.1)
    assert isinstance(started, EngineStarted) and (started.generation, started.attempt, started.budget) == (1, 1, 3)
    assert "SIGSEGV" in started.cause
    watched.clock.advance(0.5)
    replaced = watched.look_until(EngineReplaced)
    assert replaced == EngineReplaced(FIRST, Generation(1), READY, successor.pid, 1.5)
    assert starts.asked == [(0, 1)] and child.did == ["close"]
    watched.clock.advance(7)
    status = watched.supervisor.status(FIRST)
    assert status is not None and (status.generation, status.pid, status.uptime) == (1, successor.pid, 7)
    successor.status = -9  # the next death is that of the next generation
    (died,) = watched.look()
    assert isinstance(died, EngineDied) and died.generation == 1 and "(generation 1)" in died.error.message


def test_starts_that_fail_count_until_the_budget_is_exhausted() -> None:
    child = ScriptedChild()
    starts = Starts(StartupError("no weights", exit_status=11), OSError("no memory"), StartupError("no weights"))
    watched = Watched(child, policy=POLICY, replace=starts)
    child.status = -9
    watched.look()
    for generation, told in ((1, "no weights"), (2, "no memory")):
        watched.clock.advance(8)
        died = watched.look_until(EngineDied)
        assert isinstance(died, EngineDied) and died.generation == generation and died.restarting
        assert told in died.error.message and died.error.restarting
    watched.clock.advance(8)
    given_up = watched.look_until(EngineGivenUp)
    assert isinstance(given_up, EngineGivenUp) and isinstance(given_up.error, CrashLoopError)
    assert "died 4 times within 60 s" in given_up.error.message and "no weights" in given_up.error.message
    assert starts.asked == [(0, 1), (0, 2), (0, 3)]
    assert watched.look(1000) == []


def test_a_failure_record_is_a_death_and_the_successor_waits_for_the_end() -> None:
    child, starts = ScriptedChild(), Starts(ScriptedChild())
    watched = Watched(child, policy=POLICY, replace=starts)
    child.record = RECORD
    (died,) = watched.look()
    assert isinstance(died, EngineDied) and "the device is gone" in died.error.message
    assert died.error.exit_status is None
    assert watched.look(ENDING_TIMEOUT - 0.1) == [] and child.did == []
    child.status = 10
    assert isinstance(watched.look()[0], EngineStarted)
    watched.look_until(EngineReplaced)


def test_whoever_announces_its_death_and_does_not_end_is_ended() -> None:
    child, starts = ScriptedChild(), Starts(ScriptedChild())
    watched = Watched(child, policy=POLICY, replace=starts)
    child.record = RECORD
    watched.look()
    watched.look(ENDING_TIMEOUT)
    assert child.did[0] == "kill"
    watched.look_until(EngineReplaced)


@pytest.mark.parametrize("immortal", [False, True])
def test_a_verdict_of_the_watch_kills(immortal: bool) -> None:
    child = ScriptedChild(immortal=immortal)
    seconds: list[float] = []

    def watch(rank: EngineRank, generation: Generation, found: Child, now: float) -> Verdict:
        assert (rank, generation, found) == (FIRST, 0, child)
        seconds.append(now)
        return Verdict("step", 61.0, "step 7 has run for 61 s")

    watched = Watched(child, watch=watch)
    for now in (TICK, 2 * TICK):
        watched.supervisor._judge(now)
    assert seconds == [TICK]  # one verdict is enough
    assert child.did == ["dump", "kill"]
    assert watched.events[0] == EngineStalled(FIRST, Generation(0), "step 7 has run for 61 s")
    died, _ = watched.look(1.0)
    assert isinstance(died, EngineDied) and "stuck: step 7 has run for 61 s" in died.error.message
    assert died.error.exit_status == (None if immortal else -9)


def test_a_notice_is_traced_to_whoever_left_a_record() -> None:
    first, second = ScriptedChild(), ScriptedChild()
    watched = Watched(first, second)
    second.record = RECORD
    watched.supervisor.notice()
    assert [event.rank for event in watched.events] == [SECOND, SECOND]  # type: ignore[union-attr]
    assert watched.look(NOTICE_PATIENCE) == []


@pytest.mark.parametrize("successor_serves", [False, True])
def test_a_notice_that_comes_late_is_no_news(successor_serves: bool) -> None:
    child = ScriptedChild()
    watched = Watched(child, policy=POLICY, replace=Starts(ScriptedChild()))
    child.status = 10
    assert isinstance(watched.look()[0], EngineDied)
    if successor_serves:
        watched.clock.advance(1.0)
        watched.look_until(EngineReplaced)
    seen = len(watched.events)
    watched.supervisor.notice()
    watched.look(NOTICE_PATIENCE)
    assert not [event for event in watched.events[seen:] if isinstance(event, EngineDied | EngineGivenUp)]


def test_a_notice_that_nobody_explains_is_told_without_a_name() -> None:
    watched = Watched(ScriptedChild())
    watched.supervisor.notice()
    assert watched.look(NOTICE_PATIENCE - 0.1) == []
    (event,) = watched.look(0.1)
    assert isinstance(event, EngineGivenUp) and event.rank is None
    elsewhere = Watched()
    elsewhere.supervisor.notice()
    assert [type(event) for event in elsewhere.events] == [EngineGivenUp]


def test_listeners_come_and_go_and_one_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    child = ScriptedChild()
    watched = Watched(child)
    gone: list[Event] = []
    watched.supervisor.subscribe(lambda event: 1 / 0)  # type: ignore[arg-type, return-value]
    watched.supervisor.subscribe(gone.append)()
    last: list[Event] = []
    watched.supervisor.subscribe(last.append)
    child.status = -9
    watched.look()
    assert last == watched.events and len(last) == 2 and gone == []
    assert "a listener for events of engines failed" in caplog.text


def test_stopping_ends_a_start_that_is_under_way() -> None:
    child, late = ScriptedChild(), ScriptedChild()
    cancelled: list[bool] = []

    def come_up_all_the_same(cancel: Wakeup) -> ScriptedChild:
        entered.set()
        until(cancel.clear)
        cancelled.append(True)
        return late

    entered = threading.Event()
    watched = Watched(child, policy=POLICY, replace=Starts(come_up_all_the_same))
    child.status = -9
    watched.look()
    watched.look(1.0)
    assert entered.wait(10)
    watched.supervisor.stop(0.0)
    assert cancelled == [True]
    assert "close" in late.did and late.status == -9
    assert not any(isinstance(event, EngineReplaced) for event in watched.events)


def test_after_the_stop_nothing_is_told_and_nothing_started() -> None:
    child, starts = ScriptedChild(), Starts(ScriptedChild())
    watched = Watched(child, policy=POLICY, replace=starts)
    watched.supervisor.stop(0.0)
    watched.supervisor.stop(0.0)
    assert watched.look(100) == [] and starts.asked == []


def test_a_forked_process_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    child = ScriptedChild()
    watched = Watched(child)
    owner = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: owner + 1)
    child.status = -9
    assert watched.look() == []
    watched.supervisor.stop(0.0)
    assert child.did == []


def test_the_thread_survives_bugs_and_ends_with_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child = ScriptedChild()
    looked: list[int] = []

    def look(self: Supervisor) -> None:
        looked.append(1)
        raise ValueError("a bug")

    monkeypatch.setattr(Supervisor, "look", look)
    supervisor = Supervisor({FIRST: cast(Child, child)}).open()
    until(lambda: len(looked) >= 2)
    supervisor.stop(0.0)
    assert "met a bug of ours" in caplog.text
    assert not any(thread.name == "muro-supervisor" for thread in threading.enumerate())
