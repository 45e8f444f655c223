"""Ranks come and go under supervision: each is told once, and nothing is left of those that go."""

from __future__ import annotations

import threading

import pytest

from muro.errors import StartupError, UsageError
from muro.ids import EngineRank, Generation
from muro.launch.events import EngineAdded, EngineDied, EngineGivenUp, EngineLeft, EngineReplaced, EngineUnborn
from muro.launch.supervisor import NOTICE_PATIENCE
from muro.transport.wakeup import Wakeup
from tests.support.deadline import until
from tests.support.fake_engine import RESPONSE as READY
from tests.support.scripted_child import ScriptedChild
from tests.unit.launch.test_supervisor import FIRST, POLICY, RECORD, SECOND, Starts, Watched


def bury(watched: Watched) -> None:
    """What the supervisor's thread does."""
    watched.supervisor.look()
    watched.supervisor._turnover.bury()


def test_a_new_rank_is_told_and_supervised_as_any_other() -> None:
    new, successor = ScriptedChild(), ScriptedChild()
    starts = Starts(new, successor)
    watched = Watched(ScriptedChild(), policy=POLICY, replace=starts)
    assert watched.supervisor.status(SECOND) is None
    watched.supervisor.grow(SECOND)
    assert watched.look_until(EngineAdded) == EngineAdded(SECOND, Generation(0), READY, new.pid)
    with pytest.raises(UsageError, match="come up just now"):
        watched.supervisor.grow(SECOND)
    assert watched.supervisor.status(SECOND).pid == new.pid  # type: ignore[union-attr]
    new.status = -9
    (died,) = watched.look()
    assert isinstance(died, EngineDied) and died.restarting
    watched.clock.advance(1)
    watched.look_until(EngineReplaced)
    assert starts.asked == [(1, 0), (1, 1)]


def test_a_new_rank_that_does_not_come_up_is_told_and_may_be_tried_again() -> None:
    starts = Starts(OSError("no memory"), StartupError("no weights", exit_status=11), ScriptedChild())
    watched = Watched(ScriptedChild(), policy=POLICY, replace=starts)
    for words in ("engine 1 could not be started: OSError: no memory", "no weights"):
        watched.supervisor.grow(SECOND)
        unborn = watched.look_until(EngineUnborn)
        assert isinstance(unborn, EngineUnborn) and unborn.error.message == words
        assert watched.supervisor.status(SECOND) is None
    watched.supervisor.grow(SECOND)
    watched.look_until(EngineAdded)
    assert starts.asked == [(1, 0), (1, 1), (1, 2)]


def test_a_start_can_be_given_up() -> None:
    def wait(cancel: Wakeup) -> ScriptedChild:
        until(cancel.clear)
        raise StartupError("cancelled")

    watched = Watched(ScriptedChild(), replace=Starts(wait))
    start = watched.supervisor.grow(SECOND)
    with pytest.raises(UsageError, match="not given up yet"):
        watched.supervisor.grow(SECOND)
    start.cancel()
    watched.look_until(EngineUnborn)
    start.cancel()


def test_stopping_ends_what_is_being_started() -> None:
    late, entered = ScriptedChild(), threading.Event()

    def come_up_all_the_same(cancel: Wakeup) -> ScriptedChild:
        entered.set()
        until(cancel.clear)
        return late

    watched = Watched(ScriptedChild(), replace=Starts(come_up_all_the_same))
    watched.supervisor.grow(SECOND)
    assert entered.wait(10)
    watched.supervisor.stop(0.0)
    assert "close" in late.did and not watched.events


def test_who_is_let_go_is_asked_to_end_and_told_when_it_has() -> None:
    first, second = ScriptedChild(), ScriptedChild()
    watched = Watched(first, second, policy=POLICY, replace=Starts(ScriptedChild()))
    watched.supervisor.let_go(SECOND, 5.0)
    assert second.did == ["terminate"] and watched.look(4.9) == []
    second.status = 0
    bury(watched)
    assert watched.events == [EngineLeft(SECOND, Generation(0))] and second.did == ["terminate", "close"]
    assert watched.supervisor.status(SECOND) is None and watched.look(1000) == [] and first.did == []
    watched.supervisor.grow(SECOND)
    added = watched.look_until(EngineAdded)
    assert isinstance(added, EngineAdded) and added.generation == 1, "no news of the old one are taken for its own"


def test_who_does_not_end_in_time_is_killed() -> None:
    child = ScriptedChild()
    watched = Watched(ScriptedChild(), child)
    watched.supervisor.let_go(SECOND, 5.0)
    watched.look(5.0)
    bury(watched)
    assert child.did == ["terminate", "kill", "close"] and watched.events == [EngineLeft(SECOND, Generation(0))]


def test_who_fails_on_its_way_out_costs_nobody_anything() -> None:
    child = ScriptedChild()
    watched = Watched(ScriptedChild(), child, policy=POLICY, replace=Starts())
    watched.supervisor.let_go(SECOND, 5.0)
    child.record = RECORD
    watched.supervisor.notice()
    child.status = 10
    bury(watched)
    watched.supervisor.notice()
    watched.look(NOTICE_PATIENCE)
    assert watched.events == [EngineLeft(SECOND, Generation(0))]


def test_who_is_dead_can_be_let_go() -> None:
    child = ScriptedChild()
    watched = Watched(child, ScriptedChild())
    child.status = -9
    watched.look()
    watched.supervisor.let_go(FIRST, 5.0)
    bury(watched)
    assert [type(event) for event in watched.events] == [EngineDied, EngineGivenUp, EngineLeft]


@pytest.mark.parametrize("comes_up", [False, True])
def test_who_is_let_go_while_its_successor_starts_gets_none(comes_up: bool) -> None:
    late, entered = ScriptedChild(), threading.Event()

    def start(cancel: Wakeup) -> ScriptedChild:
        entered.set()
        until(cancel.clear)
        if not comes_up:
            raise StartupError("cancelled")
        return late

    child = ScriptedChild()
    watched = Watched(child, ScriptedChild(), policy=POLICY, replace=Starts(start))
    child.status = -9
    watched.look()
    watched.look(1.0)
    assert entered.wait(10)
    watched.supervisor.let_go(EngineRank(0), 5.0)

    def left() -> bool:
        bury(watched)
        return isinstance(watched.events[-1], EngineLeft)

    until(left)
    assert not any(isinstance(event, EngineReplaced) for event in watched.events)
    assert late.did == (["kill", "close"] if comes_up else [])
    assert watched.events[-1] == EngineLeft(FIRST, Generation(1))
