"""One engine as a session knows it: the table of its states, and generations."""

import pytest

from muro.clients.engine import TRANSITIONS, EngineState, KnownEngine
from muro.errors import EngineDeadError, InternalError
from muro.ids import EngineRank, Generation

GONE = EngineDeadError("killed by SIGKILL", rank=3, pid=77)


def known(state: EngineState) -> KnownEngine:
    engine = KnownEngine(EngineRank(3))
    engine.state = state
    return engine


def fire(engine: KnownEngine, event: str) -> None:
    match event:
        case "joined":
            engine.joined(None)
        case "died":
            assert engine.died(0, GONE)
        case "replaced":
            engine.replaced_by(KnownEngine(engine.rank, Generation(engine.generation + 1)))
        case "left":
            engine.left(GONE)


@pytest.mark.parametrize("state", EngineState)
@pytest.mark.parametrize("event", ["joined", "died", "replaced", "left"])
def test_the_table_is_the_behaviour(state: EngineState, event: str) -> None:
    engine = known(state)
    if (after := TRANSITIONS.get((state, event))) is not None:
        fire(engine, event)
        assert engine.state is after
        return
    with pytest.raises((InternalError, AssertionError)):
        fire(engine, event)
    assert engine.state is state


def test_the_death_of_another_generation_is_no_news() -> None:
    engine = KnownEngine(EngineRank(3), Generation(2))
    engine.joined(None)
    assert not engine.died(1, GONE)
    assert engine.serving
    assert engine.died(2, GONE)
    assert not engine.died(2, GONE)


def test_only_a_later_generation_of_the_same_rank_follows() -> None:
    for successor in (KnownEngine(EngineRank(3)), KnownEngine(EngineRank(4), Generation(1))):
        engine = known(EngineState.DEAD)
        with pytest.raises(InternalError):
            engine.replaced_by(successor)


def test_who_does_not_serve_says_why() -> None:
    engine = KnownEngine(EngineRank(3))
    with pytest.raises(EngineDeadError, match="joining"):
        engine.check_serving()
    engine.joined(None)
    engine.check_serving()
    engine.died(0, GONE)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        engine.check_serving()


def test_those_in_between_may_never_have_served() -> None:
    engine, successor = known(EngineState.DEAD), KnownEngine(EngineRank(3), Generation(4))
    engine.replaced_by(successor)
    assert engine.state is EngineState.REPLACED


def test_why_a_successor_did_not_start_is_why_there_is_none() -> None:
    engine = KnownEngine(EngineRank(3))
    engine.joined(None)
    first = EngineDeadError("killed", rank=3, restarting=True, retry_after=1.5)
    assert engine.died(0, first) and engine.restarting
    with pytest.raises(EngineDeadError, match="killed") as caught:
        engine.check_serving()
    assert caught.value is not first and (caught.value.restarting, caught.value.retry_after) == (True, 1.5)
    assert not engine.died(1, EngineDeadError("no weights", rank=3))
    assert not engine.restarting
    with pytest.raises(EngineDeadError, match="no weights"):
        engine.check_serving()
