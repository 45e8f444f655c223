"""Faults with conditions: how they are written, and when they are due."""

from __future__ import annotations

import pytest

from muro.engines.faults import Fault
from muro.engines.sim.schedule import NO_CONDITION, FaultSchedule, When, parse_scheduled, spell
from muro.errors import ConfigError
from muro.testing.clock import ManualClock

HANG = Fault("step", "hang")


@pytest.mark.parametrize(
    ("text", "fault", "when"),
    [
        ("hang", HANG, NO_CONDITION),
        ("sleep=0.5", Fault("step", "sleep", "0.5"), NO_CONDITION),
        ("add:exit=7", Fault("add", "exit", "7"), NO_CONDITION),
        ("step:hang@time=30", HANG, When(time=30)),
        ("hang@step=3,request=4, chance=0.5,times=0", HANG, When(step=3, request=4, chance=0.5, times=0)),
        ("idle:signal=SIGKILL@time=1.5", Fault("idle", "signal", "SIGKILL"), When(time=1.5)),
    ],
)
def test_reading_and_writing(text: str, fault: Fault, when: When) -> None:
    assert parse_scheduled(text) == (fault, when)
    assert parse_scheduled(spell(fault, when)) == (fault, when)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("explode", "the place is one of"),
        ("step:explode", "the kind is one of"),
        ("hang@soon", "'soon' is not of the form"),
        ("hang@", "'' is not of the form"),
        ("hang@day=1", "conditions are time, step, request, prefill, preemption, running, chance"),
        ("hang@time=soon", "time"),
        ("hang@time=-1", "not negative"),
        ("hang@chance=0", "chance lies in"),
        ("hang@chance=1.5", "chance lies in"),
        ("idle:raise", "what can be done there is barren, executor, exit, hang"),
        ("idle:hang@times=2", "its only condition is time"),
        ("loading:hang@time=2", "its only condition is times"),
        ("construct:exit=7@step=3", "its only condition is times"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_scheduled(text)


def armed(*texts: str, seed: int | None = None) -> tuple[FaultSchedule, ManualClock]:
    clock = ManualClock()
    schedule = FaultSchedule(clock, seed)
    for text in texts:
        schedule.arm(*parse_scheduled(text))
    return schedule, clock


def test_without_conditions_it_comes_once_and_in_its_place() -> None:
    schedule, _ = armed("hang")
    assert schedule.due("add") == []
    assert schedule.due("step") == [HANG]
    assert schedule.due("step") == []


def test_time_counts_from_arming_or_loading() -> None:
    schedule, clock = armed("hang@time=5")
    clock.advance(100)
    schedule.loaded()
    assert schedule.due("step") == []
    clock.advance(4)
    assert schedule.due("step") == []
    clock.advance(1)
    assert schedule.due("step") == [HANG]


def test_steps_and_requests() -> None:
    schedule, _ = armed("hang@step=3,request=2")
    due = []
    for number in range(1, 6):
        schedule.step_begins(1, 0, 0)
        if number == 4:
            schedule.request_comes()
            schedule.request_comes()
        due += [number for _ in schedule.due("step")]
    assert due == [4]


def test_prefills_preemptions_and_what_runs() -> None:
    schedule, _ = armed("hang@prefill=3", "spin@preemption=2", "exit@running=4,times=0")
    due = []
    for sequences, begun, preemptions in ((9, 2, 1), (1, 2, 1), (1, 0, 2), (4, 0, 2), (3, 0, 2), (5, 0, 2)):
        schedule.step_begins(sequences, begun, preemptions)
        due.append([fault.kind for fault in schedule.due("step")])
    assert due == [["exit"], ["hang"], ["spin"], ["exit"], [], ["exit"]]
    schedule.work_ends()
    assert schedule.due("step") == [] and schedule.waits_at("step") and not schedule.waits_at("add")


def test_what_is_armed_later_counts_from_then() -> None:
    schedule, _ = armed()
    schedule.step_begins(1, 5, 5)
    schedule.arm(*parse_scheduled("hang@prefill=1"))
    assert schedule.due("step") == []
    schedule.step_begins(1, 1, 5)
    assert schedule.due("step") == [HANG]


def test_the_idle_place_has_a_clock_of_its_own() -> None:
    idle, steps = ManualClock(), ManualClock()
    schedule = FaultSchedule(steps, None, idle)
    schedule.arm(*parse_scheduled("idle:exit@time=7"))
    schedule.arm(*parse_scheduled("hang@time=7"))
    idle.advance(7)
    assert schedule.next_idle() == 0 and len(schedule.due("idle")) == 1 and schedule.due("step") == []
    steps.advance(7)
    assert schedule.due("step") == [HANG]


def test_times() -> None:
    schedule, _ = armed("sleep=1@times=2", "hang@times=0")
    assert [len(schedule.due("step")) for _ in range(4)] == [2, 2, 1, 1]
    assert schedule.listed() == ["step:hang@times=0"]


def test_chance_comes_alike_for_one_seed() -> None:
    def series(seed: int) -> list[int]:
        schedule, _ = armed("hang@chance=0.25,times=0", seed=seed)
        return [len(schedule.due("step")) for _ in range(400)]

    assert series(1) == series(1) != series(2)
    assert 60 < sum(series(1)) < 140


def test_list_and_clear() -> None:
    schedule, _ = armed("hang@time=5", "add:refuse@times=3")
    schedule.due("add")
    assert schedule.listed() == ["step:hang@time=5", "add:refuse@times=2"]
    assert schedule.clear() == 2
    assert schedule.listed() == [] and schedule.due("add") == []


def test_when_the_idle_place_is_reached_next() -> None:
    schedule, clock = armed("hang@time=1")
    assert schedule.next_idle() is None
    schedule.arm(*parse_scheduled("idle:exit@time=7"))
    clock.advance(3)
    assert schedule.next_idle() == pytest.approx(4)
    clock.advance(10)
    assert schedule.next_idle() == 0
    assert schedule.due("idle") == [Fault("idle", "exit")]
    assert schedule.next_idle() is None
