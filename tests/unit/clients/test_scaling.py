"""From one number of engines to another: who comes, who goes, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.clients.engine import KnownEngine
from muro.clients.scaling import MAX_ENGINES, Scaling, plan_scaling
from muro.clients.session import Message, Session
from muro.errors import ClientClosedError, EngineDeadError, InvalidRequestError, StartupError, UsageError
from muro.ids import EngineRank, Generation
from muro.wire.control import AbortRequest
from muro.wire.output import FinishReason
from tests.support.asking import output, outputs
from tests.support.sessions import Sink, add, batches, new_session, read

RANKS = [EngineRank(rank) for rank in range(4)]


class Growing(NamedTuple):
    """The start of an engine."""

    generation: Generation
    cancel: Callable[[], None]


class Processes:
    """The way to engines whose starts and ends are told by the test."""

    def __init__(self, session: Session, elsewhere: tuple[int, ...] = (), refuse: Exception | None = None) -> None:
        self._session = session
        self._elsewhere = elsewhere
        self._refuse = refuse
        self.sent: list[Message] = []
        self.growing: list[EngineRank] = []
        self.ending: list[EngineRank] = []
        self.generation = Generation(0)

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True

    def started_here(self) -> list[EngineRank]:
        return [rank for rank in self._session.engines if rank not in self._elsewhere]

    def grow(self, rank: EngineRank) -> Growing:
        if self._refuse is not None and self.growing:
            raise self._refuse
        self.growing.append(rank)
        return Growing(self.generation, lambda: self.growing.remove(rank))

    def let_go(self, rank: EngineRank) -> None:
        self.ending.append(rank)


class Change:
    """One change of a session with so many engines; time by hand."""

    def __init__(
        self,
        target: int,
        engines: int = 2,
        session: Session | None = None,
        drain_timeout: float | None = 10.0,
        **more: Any,
    ) -> None:
        self.session = session or new_session(engines)
        self.way = Processes(self.session, **more)
        self.scaling = Scaling(self.session, self.way, target, drain_timeout, 100.0)
        self.woken = 0

    def begin(self) -> Change:
        self.scaling.begin(self._wake)
        return self

    def _wake(self) -> None:
        self.woken += 1


def planned(target: Any, engines: int = 3, elsewhere: tuple[int, ...] = ()) -> tuple[list[int], list[int]]:
    session = new_session(engines)
    plan = plan_scaling(session.engines, Processes(session, elsewhere).started_here(), target)
    return list(plan.joining), list(plan.leaving)


def test_the_lowest_free_ranks_come_and_the_highest_go() -> None:
    assert planned(3) == ([], [])
    assert planned(5) == ([3, 4], [])
    assert planned(1) == ([], [2, 1])


def test_those_elsewhere_stay() -> None:
    assert planned(2, elsewhere=(2,)) == ([], [1])
    assert planned(1, elsewhere=(0,)) == ([], [2, 1])
    with pytest.raises(InvalidRequestError, match="2 were started elsewhere"):
        planned(1, elsewhere=(0, 1))


def test_those_who_are_dead_for_good_make_room_and_those_who_come_back_count() -> None:
    session = new_session(3)
    session.died(RANKS[0], 0, EngineDeadError("killed", rank=0))
    session.died(RANKS[1], 0, EngineDeadError("killed", rank=1, restarting=True))
    plan = plan_scaling(session.engines, session.engines, 3)
    assert (plan.joining, plan.leaving) == ([3], [0])
    assert plan_scaling(session.engines, session.engines, 2).leaving == [0]
    assert plan_scaling(session.engines, session.engines, 1).leaving == [0, 1], "those who serve stay"


def test_those_who_have_left_do_not_count_but_their_rank_is_not_free() -> None:
    session = new_session(2)
    session.let_go(RANKS[1], EngineDeadError("let go", rank=1))
    plan = plan_scaling(session.engines, session.engines, 2)
    assert (plan.joining, plan.leaving) == ([2], [])


@given(st.integers(1, 12), st.integers(1, 12), st.sets(st.integers(0, 11)))
def test_there_are_as_many_then_as_were_asked_for(engines: int, target: int, elsewhere: set[int]) -> None:
    away = {rank for rank in elsewhere if rank < engines}
    if target < len(away):
        with pytest.raises(InvalidRequestError):
            planned(target, engines, tuple(away))
        return
    joining, leaving = planned(target, engines, tuple(away))
    assert engines + len(joining) - len(leaving) == target and not (joining and leaving)
    assert not set(leaving) & away and all(rank >= engines for rank in joining)


@pytest.mark.parametrize("target", [0, -1, MAX_ENGINES + 1, 2.0, "2", None, True])
def test_numbers_that_cannot_be(target: Any) -> None:
    change = Change(target)
    with pytest.raises(InvalidRequestError, match="from 1 to 256") as caught:
        change.begin()
    assert caught.value.param == "engines" and change.session.scaling is None


def test_growing_is_over_when_all_serve() -> None:
    change = Change(4).begin()
    assert change.way.growing == [2, 3] and not change.scaling.advance(100.0)
    assert change.scaling.left(100.0) is None
    for rank in (3, 2):
        change.session.fleet.add(EngineRank(rank), Generation(0), None)
    assert change.scaling.advance(101.0)
    change.scaling.end()
    change.scaling.check()
    assert list(change.session.engines) == [0, 1, 2, 3] and change.session.scaling is None


def test_who_does_not_come_up_is_told_and_the_others_serve() -> None:
    change = Change(4).begin()
    change.scaling.unborn(EngineRank(3), Generation(0), StartupError("no weights", rank=3, exit_status=11))
    change.session.fleet.add(EngineRank(2), Generation(0), None)
    assert change.scaling.advance(101.0)
    with pytest.raises(StartupError, match=r"engine 3: no weights") as caught:
        change.scaling.check()
    assert caught.value.exit_status == 11


def test_who_was_to_leave_stays_in_the_place_of_one_that_dies_for_good() -> None:
    change = Change(2, engines=4)
    for rank in (2, 3):
        add(change.session, f"on {rank}", data_parallel_rank=rank)
    change.begin()
    assert not change.scaling.advance(100.0)
    change.session.died(RANKS[0], 0, EngineDeadError("killed", rank=0, restarting=True))
    assert not change.scaling.advance(101.0) and change.session.engines[RANKS[2]].leaving
    change.session.died(RANKS[1], 0, EngineDeadError("killed", rank=1))
    assert not change.scaling.advance(102.0)
    leaving = [rank for rank, engine in change.session.engines.items() if engine.leaving]
    assert leaving == [3] and change.session.fleet.balancer.ranks == [2]


@pytest.mark.parametrize("patience", [-1, float("nan"), "x", [1]])
def test_what_is_no_drain_timeout(patience: Any) -> None:
    session = new_session(2)
    with pytest.raises(UsageError, match="from 0 on"):
        Scaling(session, Processes(session), 1, patience, 100.0)


def test_what_is_told_late_of_a_start_that_was_given_up_is_nobodys_any_more() -> None:
    first = Change(3).begin()
    first.scaling.end()
    second = Change(3, session=first.session)
    second.way.generation = Generation(1)
    second.begin()
    second.scaling.unborn(EngineRank(2), Generation(0), StartupError("cancelled", rank=2))
    assert not second.scaling.advance(100.0)
    second.session.fleet.add(EngineRank(2), Generation(1), None)
    assert second.scaling.advance(101.0)
    second.scaling.check()


def test_if_one_cannot_even_begin_the_others_are_given_up() -> None:
    change = Change(4, refuse=StartupError("no thread"))
    with pytest.raises(StartupError, match="no thread"):
        change.begin()
    assert change.way.growing == [] and change.session.scaling is None


def test_who_leaves_is_let_go_when_it_has_nothing_more() -> None:
    session, sink = new_session(2), Sink()
    sent = add(session, "a", sink, data_parallel_rank=1)
    change = Change(1, session=session).begin()
    assert not change.scaling.advance(100.0) and change.scaling.left(103.0) == 7.0
    assert add(session, "b", Sink()) and session.fleet.in_flight(RANKS[0]) == 1
    session.receive(outputs(output(sent.request_id, 7, finish=FinishReason.STOP), rank=1))
    assert change.woken == 1 and not change.scaling.advance(104.0)
    assert change.way.ending == [1] and change.scaling.left(104.0) is None and not change.way.sent
    session.fleet.remove(RANKS[1])
    assert change.scaling.advance(105.0) and not sink.errors


@pytest.mark.parametrize("batched", [False, True])
def test_whose_time_is_up_is_ended_and_its_requests_with_it(batched: bool) -> None:
    session, sink = new_session(2), Sink()
    sent = add(session, "a", None if batched else sink, data_parallel_rank=1)
    call, _ = session.call("slow", (), 1, lambda: None)
    change = Change(1, session=session).begin()
    assert not change.scaling.advance(109.9) and change.way.ending == []
    assert not change.scaling.advance(110.0) and change.way.ending == [1]
    assert [read(message) for message in change.way.sent] == [(1, AbortRequest([sent.request_id]))]
    if batched:
        (ended,) = batches(session)
        assert ended.error is not None and ended.error.retryable
    else:
        assert [type(error) for error in sink.errors] == [EngineDeadError] and "drain_timeout" in str(sink.errors[0])
    with pytest.raises(EngineDeadError, match="let go"):
        call.result()


def test_who_leaves_is_not_called_with_all() -> None:
    change = Change(1, engines=3).begin()
    _, messages = change.session.call("own", (), None, lambda: None)
    assert [message[0][0] for message in messages] == [0]


def test_what_has_not_happened_does_not_happen_after_the_end() -> None:
    session = new_session(3)
    add(session, "a", Sink(), data_parallel_rank=2)
    change = Change(1, session=session).begin()
    change.scaling.advance(100.0)
    assert change.way.ending == [1]
    change.scaling.end()
    assert add(session, "pinned", Sink(), data_parallel_rank=2)
    growing = Change(5).begin()
    growing.scaling.end()
    assert growing.way.growing == []


def test_one_change_at_a_time_and_none_of_a_closed_session() -> None:
    change = Change(1).begin()
    with pytest.raises(UsageError, match="already"):
        Scaling(change.session, change.way, 3, 10.0, 100.0).begin(lambda: None)
    change.session.close()
    with pytest.raises(ClientClosedError):
        change.scaling.advance(100.0)
    change.scaling.end()


@pytest.mark.parametrize("patience", [None, float("inf"), 1e300])
def test_who_leaves_may_take_as_long_as_it_takes(patience: float | None) -> None:
    session, sink = new_session(2), Sink()
    sent = add(session, "a", sink, data_parallel_rank=1)
    change = Change(1, session=session, drain_timeout=patience).begin()
    assert not change.scaling.advance(1e12) and change.scaling.left(1e12) == 86_400.0
    session.receive(outputs(output(sent.request_id, 7, finish=FinishReason.STOP), rank=1))
    assert not change.scaling.advance(1e12) and change.way.ending == [1] and not sink.errors


def test_an_engine_that_dies_while_it_leaves_is_let_go_at_once() -> None:
    session, sink = new_session(2), Sink()
    add(session, "a", sink, data_parallel_rank=1)
    change = Change(1, session=session).begin()
    session.died(RANKS[1], 0, EngineDeadError("killed", rank=1, restarting=True))
    assert not change.scaling.advance(101.0) and change.way.ending == [1] and len(sink.errors) == 1
    assert isinstance(session.engines[RANKS[1]], KnownEngine)
