"""Engines without a page, a real session, and time by hand."""

import pytest

from muro.clients.calls import PendingCall
from muro.clients.engine import KnownEngine
from muro.clients.session import Session
from muro.clients.silence import TICK, SilentEngines
from muro.errors import EngineDeadError
from muro.ids import EngineRank, Generation
from muro.testing.clock import ManualClock
from muro.wire.control import UtilityRequest
from muro.wire.output import FinishReason, UtilityOutput
from tests.support.asking import ask, output, outputs
from tests.support.fake_engine import RESPONSE as READY

HERE, THERE = EngineRank(0), EngineRank(1)
LIMIT = 10.0


class Rig:
    """A client of one engine here and one elsewhere."""

    def __init__(self, limit: float | None = LIMIT) -> None:
        engines = {rank: KnownEngine(rank) for rank in (HERE, THERE)}
        for engine in engines.values():
            engine.joined(None)
        self.session = Session(engines, nonce="n")
        self.clock = ManualClock()
        self.lost: list[tuple[EngineRank, EngineDeadError]] = []
        lose = lambda rank, error: self.lost.append((rank, error))  # noqa: E731
        self.silent = SilentEngines(self.session, [THERE], limit, lose, self.clock)

    def listen(self, seconds: float) -> float:
        """Wait for news that do not come; gives when an engine was lost, or the whole time."""
        waited = 0.0
        while waited < seconds and not self.lost:
            step = self.silent.patience(1.0)
            assert step is not None
            self.clock.advance(step)
            waited += step
            self.silent.look()
        return waited

    def ask(self, rank: EngineRank, request_id: str = "a", *, batches: bool = False) -> str:
        request = ask(request_id)
        request.data_parallel_rank = rank
        attempt, _ = self.session.add(request, None if batches else Sink(), 0.0)
        return attempt.wire_id

    def call(self, method: str) -> UtilityRequest:
        call, _ = self.session.call(method, (), THERE, lambda: None)
        assert isinstance(call, PendingCall)
        (call_id,) = call.waiting
        return UtilityRequest(0, call_id, method, [])

    def answer(self, request: UtilityRequest) -> None:
        self.session.receive(outputs(utility_output=UtilityOutput(request.call_id, None, [None, None])))


class Sink:
    def put(self, output: object) -> None: ...

    def fail(self, error: object) -> None: ...


@pytest.mark.parametrize("what", ["request", "call"])
def test_who_owes_something_and_says_nothing_is_lost_at_the_limit(what: str) -> None:
    rig = Rig()
    assert rig.listen(5 * LIMIT) == 5 * LIMIT, "idle"
    if what == "request":
        rig.ask(THERE)
    else:
        rig.call("save_sharded_state")
    took = rig.listen(5 * LIMIT)
    assert LIMIT <= took <= LIMIT + 1 + 2 * TICK
    ((rank, error),) = rig.lost
    assert rank == THERE and error.rank == THERE
    assert "engine 1 (started elsewhere) is taken for dead: nothing was heard of it for 10 s" in error.message


def test_a_successor_has_the_whole_limit_again() -> None:
    rig = Rig()
    rig.ask(THERE)
    rig.listen(5 * LIMIT)
    rig.session.died(THERE, 0, EngineDeadError("silent", rank=THERE, restarting=True))
    rig.lost.clear()
    rig.listen(5 * LIMIT)
    assert not rig.lost, "the dead owe nothing"
    rig.session.succeeded(THERE, Generation(1), READY)
    rig.ask(THERE, "b")
    assert LIMIT <= rig.listen(5 * LIMIT) <= LIMIT + 1 + 2 * TICK


def test_while_nothing_is_owed_nobody_is_woken() -> None:
    rig = Rig()
    assert rig.silent.patience(None) is None and rig.silent.patience(5.0) == 5.0
    rig.ask(HERE)
    assert rig.silent.patience(None) is None, "that one has a page"
    rig.ask(THERE, "b")
    assert rig.silent.patience(None) == TICK and rig.silent.patience(0.0) == 0.0


def test_whatever_it_says_is_a_sign_of_life() -> None:
    rig = Rig()
    rig.ask(THERE)
    for _ in range(10):
        assert rig.listen(LIMIT - 1) == pytest.approx(LIMIT - 1, abs=TICK)
        rig.silent.heard(THERE)
    assert not rig.lost


def test_what_others_say_is_none() -> None:
    rig = Rig()
    rig.ask(THERE)
    rig.listen(LIMIT - 1)
    rig.silent.heard(HERE)
    rig.silent.heard(77)
    rig.listen(2)
    assert rig.lost


def test_a_caller_who_does_something_else_makes_nobody_look_silent() -> None:
    rig = Rig()
    rig.ask(THERE)
    for _ in range(10):
        rig.clock.advance(5 * LIMIT)
        rig.silent.look()
    assert not rig.lost


def test_a_pause_of_ours_may_last() -> None:
    rig = Rig()
    rig.ask(THERE)
    rig.answer(rig.call("pause_scheduler"))
    rig.listen(5 * LIMIT)
    assert not rig.lost
    rig.answer(rig.call("resume_scheduler"))
    assert rig.listen(5 * LIMIT) >= LIMIT
    assert rig.lost


def test_last_outputs_that_wait_in_a_batch_are_not_owed() -> None:
    rig = Rig()
    wire_id = rig.ask(THERE, batches=True)
    rig.session.receive(outputs(output(wire_id, 7, finish=FinishReason.LENGTH), rank=THERE))
    rig.silent.heard(THERE)
    assert rig.session.fleet.in_flight(THERE) == 1
    rig.listen(5 * LIMIT)
    assert not rig.lost


@pytest.mark.parametrize("limit", [None, 0.0])
def test_without_a_limit_nobody_is_watched(limit: float | None) -> None:
    assert not Rig(limit).silent
