"""Lockstep engines under a supervisor: one dies, all are ended, all start again, and everybody hears the one cause."""

from __future__ import annotations

from muro.errors import CrashLoopError, EngineDeadError, StartupError
from muro.ids import EngineRank
from muro.launch.events import EngineDied, EngineGivenUp, EngineReplaced, EngineStalled, EngineStarted, Event
from muro.launch.restart import RankState
from muro.launch.supervisor import ENDING_TIMEOUT, NOTICE_PATIENCE, TICK
from muro.launch.watchdog import Verdict
from muro.wire.failure import FailureRecord
from tests.support.scripted_child import ScriptedChild
from tests.support.supervised import POLICY, Starts, Watched

MISSES = FailureRecord("serving", EngineDeadError.__name__, "lockstep rank 1 did not take part in agreement 7")
CRASHED = FailureRecord("serving", "FaultError", "the device is gone")


def group(size: int = 3, *outcomes: object) -> tuple[list[ScriptedChild], Watched, Starts]:
    children = [ScriptedChild(f"engine {rank} (scripted)") for rank in range(size)]
    starts = Starts(*outcomes)  # type: ignore[arg-type]
    return children, Watched(*children, policy=POLICY, replace=starts, lockstep=True), starts


def deaths(events: list[Event]) -> dict[int, EngineDeadError]:
    return {event.rank: event.error for event in events if isinstance(event, EngineDied)}


def test_all_are_ended_and_all_start_again() -> None:
    successors = [ScriptedChild() for _ in range(3)]
    children, watched, starts = group(3, *successors)
    children[1].status = -11
    errors = deaths(watched.look())
    assert sorted(errors) == [0, 1, 2] and all(error.restarting and error.retry_after for error in errors.values())
    assert errors[1].message.startswith("engine 1 (scripted) has died") and errors[1].exit_status == -11
    for rank in (0, 2):
        assert f"engine {rank} (scripted) cannot go on" in errors[rank].message
        assert errors[1].message in errors[rank].message and errors[rank].exit_status == -9
    assert children[0].did == children[2].did == ["kill"], "at once: they can do nothing more"
    assert watched.look(0.9) == []
    started = watched.look(0.1)
    assert [(type(e), e.rank, e.generation) for e in started] == [  # type: ignore[union-attr]
        (EngineStarted, rank, 1) for rank in range(3)
    ]
    watched.look_until(EngineReplaced)
    replaced = [event for event in watched.events if isinstance(event, EngineReplaced)]
    assert [(e.rank, e.generation, e.pid) for e in replaced] == [(r, 1, successors[r].pid) for r in range(3)]
    assert starts.asked == [(0, 1), (1, 1), (2, 1)]
    for rank in range(3):
        status = watched.supervisor.status(EngineRank(rank))
        assert status is not None and (status.state, status.generation) == (RankState.RUNNING, 1)


def test_one_who_misses_another_is_not_the_cause() -> None:
    children, watched, _ = group()
    children[0].record = children[2].record = MISSES
    children[1].record = CRASHED
    errors = deaths(watched.look())
    assert "the device is gone" in errors[1].message and "the device is gone" in errors[0].message
    assert children[0].did == children[2].did == ["kill"] and children[1].did == [], "the one may end by itself"
    watched.look(ENDING_TIMEOUT)
    assert children[1].did[0] == "kill"


def test_if_all_miss_somebody_that_is_the_cause() -> None:
    children, watched, _ = group()
    for child in children:
        child.record = MISSES
    assert all("agreement 7" in error.message for error in deaths(watched.look()).values())


def test_nothing_starts_before_all_have_ended() -> None:
    children = [ScriptedChild(), ScriptedChild(immortal=True)]
    starts = Starts(ScriptedChild(), ScriptedChild())
    watched = Watched(*children, policy=POLICY, replace=starts, lockstep=True)
    children[0].status = -9
    watched.look()
    assert watched.look(100) == [] and starts.asked == []
    children[1].status = -9
    assert len(watched.look()) == 2


def test_they_have_one_budget() -> None:
    children, watched, starts = group(2, *[StartupError("no weights", rank=1, exit_status=11)] * 3)
    children[0].status = -9
    watched.look()
    for generation in (1, 2, 3):
        watched.clock.advance(8)
        watched.look_until(EngineDied if generation < 3 else EngineGivenUp)
    given_up = [event for event in watched.events if isinstance(event, EngineGivenUp)]
    assert [event.rank for event in given_up] == [0, 1]
    assert all(isinstance(event.error, CrashLoopError) for event in given_up)
    assert starts.asked == [(0, 1), (0, 2), (0, 3)] and watched.look(1000) == []


def test_all_have_died_before_any_is_given_up() -> None:
    children = [ScriptedChild() for _ in range(3)]
    watched = Watched(*children, lockstep=True)
    children[2].status = -9
    assert [type(event) for event in watched.look()] == [EngineDied] * 3 + [EngineGivenUp] * 3


def test_announcements_of_all_are_no_news() -> None:
    children, watched, _ = group(3, *(ScriptedChild() for _ in range(3)))
    for child in children:
        child.record = MISSES
    seen = len(watched.look())
    for _ in children:
        watched.supervisor.notice()
    for child in children:
        child.status = 10
    watched.look(NOTICE_PATIENCE)
    assert not [e for e in watched.events[seen:] if isinstance(e, EngineGivenUp | EngineDied)]


def test_one_verdict_is_enough_for_all() -> None:
    asked: list[int] = []

    def watch(rank: EngineRank, generation: int, found: object, now: float) -> Verdict | None:
        asked.append(rank)
        return Verdict("step", 61.0, "it stands") if rank == 1 else None

    children = [ScriptedChild() for _ in range(3)]
    watched = Watched(*children, lockstep=True, watch=watch)
    for now in (TICK, 2 * TICK):
        watched.supervisor._judge(now)
    assert asked == [0, 1]
    assert [event.rank for event in watched.events if isinstance(event, EngineStalled)] == [1]
    errors = deaths(watched.look())
    assert "stuck: it stands" in errors[1].message and errors[1].message in errors[0].message
