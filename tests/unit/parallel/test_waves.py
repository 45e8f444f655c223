"""The three machines of a wave, row by row, and the released coordinators' reactions (protocol section 15.4)."""

import pytest

from muro.ids import EngineRank
from muro.parallel.waves import (
    COORDINATOR,
    ENGINE,
    FRONT_END,
    MAX_STATED_WAVE,
    Age,
    CoordinatorEvent,
    CoordinatorWave,
    EngineEvent,
    EngineWave,
    FrontEndWave,
    Orders,
    Rule,
    Says,
    Word,
    rule_of,
)
from muro.wire.control import StartDPWave
from muro.wire.coordination import FirstRequest, Publication

NOTIFIES, ENGINES_START = Rule.FRONT_END_NOTIFIES, Rule.ENGINES_START


def test_the_tables_know_every_case() -> None:
    pairs = {(runs, event) for runs in (False, True) for event in EngineEvent}
    assert pairs - ENGINE.keys() == {(False, EngineEvent.ALL_IDLE)}, "who pauses agrees to nothing"
    assert COORDINATOR.keys() == {
        (runs, event, age) for runs in (False, True) for event in CoordinatorEvent for age in Age
    }
    assert FRONT_END.keys() == {(rule, runs) for rule in Rule for runs in (False, True)}


@pytest.mark.parametrize(("minor", "rule"), [(25, NOTIFIES), (32, NOTIFIES), (33, ENGINES_START), (40, ENGINES_START)])
def test_the_rule_of_a_release(minor: int, rule: Rule) -> None:
    assert rule_of(minor) is rule


# --- An engine ---------------------------------------------------------------------------------------------------


def engine(wave: int = 0, *, running: bool = False, interval: int = 32) -> EngineWave:
    made = EngineWave(interval)
    made.wave, made.running = wave, running
    return made


def test_work_starts_a_wave_once() -> None:
    one = engine(3)
    assert one.has_work() == Word(Says.START_WAVE, 3) and one.running
    assert one.has_work() is None


def test_a_wave_that_starts_takes_the_number_that_was_stated() -> None:
    one = engine(3)
    one.request_states(7)
    one.request_states(5)
    assert one.wave == 3, "a request that is refused starts nothing"
    assert one.has_work() == Word(Says.START_WAVE, 7)


def test_numbers_that_no_honest_front_end_states_are_not_believed() -> None:
    one = engine()
    one.request_states(MAX_STATED_WAVE + 1)
    assert one.has_work() == Word(Says.START_WAVE, 0)


@pytest.mark.parametrize(
    ("told", "running", "wave"), [(3, True, 3), (9, True, 9), (2**62, False, 3)], ids=["this", "later", "nonsense"]
)
def test_a_start(told: int, running: bool, wave: int) -> None:
    one = engine(3)
    assert one.told_to_start(told) is None
    assert (one.running, one.wave) == (running, wave)


def test_a_start_of_a_wave_that_is_over() -> None:
    one = engine(3)
    assert one.told_to_start(1) == Word(Says.WAVE_COMPLETE, 2) and not one.running
    one.running = True
    assert one.told_to_start(1) is None and one.wave == 3


def test_the_vote_of_another_rank_starts_without_a_word() -> None:
    one = engine(3)
    assert one.peers_step() is None and one.running


def test_the_end_of_a_wave() -> None:
    one = engine(3, running=True)
    one.stepped()
    assert one.all_idle() == Word(Says.WAVE_COMPLETE, 3)
    assert (one.running, one.wave, one.steps) == (False, 4, 0)


def test_a_new_coordinator_is_told_of_a_wave_that_runs() -> None:
    assert engine(3, running=True).coordinator_up() == Word(Says.START_WAVE, 3)
    assert engine(3).coordinator_up() is None


def test_the_ranks_agree_after_the_first_step_and_then_every_interval() -> None:
    one = engine(running=True, interval=32)
    assert [n for n in range(1, 100) if one.stepped()] == [1, 32, 64, 96]


# --- The coordinator ---------------------------------------------------------------------------------------------


def coordinator(wave: int = 0, *, running: bool = False) -> CoordinatorWave:
    made = CoordinatorWave()
    made.wave, made.running = wave, running
    return made


@pytest.mark.parametrize(
    ("stated", "start"), [(3, StartDPWave(3, b"\1\0")), (2, StartDPWave(3, None))], ids=["current", "older"]
)
def test_the_notice_of_a_front_end(stated: int, start: StartDPWave) -> None:
    one = coordinator(3)
    assert one.first_request(FirstRequest(b"\1\0", stated)) == Orders(start, Publication(None, 3, True))
    assert one.first_request(FirstRequest(b"\1\0", stated)) == Orders(), "they run"


def test_a_notice_with_a_number_that_makes_no_sense() -> None:
    one = coordinator()
    assert one.first_request(FirstRequest(None, -1)) == one.first_request(FirstRequest(None, 2**60)) == Orders()
    assert not one.running


def test_a_new_coordinator_learns_the_number_from_a_notice() -> None:
    one = coordinator()
    assert one.first_request(FirstRequest(2, 5)) == Orders(StartDPWave(5, 2), Publication(None, 5, True))


@pytest.mark.parametrize(("started", "wave"), [(3, 3), (5, 5)])
def test_an_engine_starts(started: int, wave: int) -> None:
    one = coordinator(3)
    assert one.engine_started(1, started) == Orders(StartDPWave(wave, 1), Publication(None, wave, True))


def test_an_engine_that_starts_a_wave_of_the_past_is_told_the_number_too() -> None:
    one = coordinator(3)
    assert one.engine_started(1, 2) == Orders(StartDPWave(3, None), Publication(None, 3, True))


def test_who_starts_while_they_run_is_heard_as_well() -> None:
    one = coordinator(3, running=True)
    assert one.engine_started(1, 3) == Orders(StartDPWave(3, 1))
    assert one.engine_started(1, 2) == Orders(StartDPWave(3, None))
    assert one.engine_started(1, 4) == Orders(StartDPWave(4, 1), Publication(None, 4, True))


@pytest.mark.parametrize("running", [False, True])
def test_the_end_of_a_wave_is_published(running: bool) -> None:
    one = coordinator(3, running=running)
    assert one.wave_complete(2) == Orders()
    assert one.running is running
    assert one.wave_complete(3) == Orders(None, Publication(None, 4, False))
    assert one.wave_complete(7) == Orders(None, Publication(None, 8, False))


# --- A front-end -------------------------------------------------------------------------------------------------


def test_a_front_end_of_the_old_rule_tells_of_its_first_request() -> None:
    one = FrontEndWave(NOTIFIES)
    one.hears(Publication(None, 4, False))
    assert one.sends_request(EngineRank(1)) == FirstRequest(1, 4)
    assert one.sends_request(EngineRank(1)) is None, "it takes them for running"
    one.hears(Publication([[0, 1]], 5, False))
    assert one.sends_request(EngineRank(0)) == FirstRequest(0, 5)


def test_a_front_end_of_the_new_rule_tells_nothing() -> None:
    one = FrontEndWave(ENGINES_START)
    one.hears(Publication(None, 4, False))
    assert one.sends_request(EngineRank(1)) is None
    assert (one.wave, one.running) == (4, False)
