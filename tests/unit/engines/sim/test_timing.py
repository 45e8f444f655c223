"""How long steps take, when they begin, and the clock that is moved."""

from __future__ import annotations

from math import log
from statistics import mean, stdev

import pytest

from muro.engines.sim.profile import Profile
from muro.engines.sim.timing import LatencyModel, Pace, VirtualClock

COSTS = Profile(step_us=10_000, sequence_us=1000, prefill_us_per_token=100, prefill_us_per_request=5000)


def test_the_time_of_a_step() -> None:
    model = LatencyModel(COSTS, 0)
    assert model.seconds(2, 0, 0) == pytest.approx(0.012)
    assert model.seconds(2, 30, 1) == pytest.approx(0.012 + 0.003 + 0.005)


def test_jitter_comes_alike_with_the_same_seed() -> None:
    costs = Profile(step_us=1e6, sequence_us=0, jitter=0.1)
    one, same, other = ([LatencyModel(costs, seed).seconds(1, 0, 0) for _ in range(1)] for seed in (1, 1, 2))
    assert one == same != other
    model = LatencyModel(costs, 7)
    logs = [log(model.seconds(1, 0, 0)) for _ in range(2000)]
    assert abs(mean(logs)) < 0.01 and stdev(logs) == pytest.approx(0.1, rel=0.1)


def test_steps_follow_where_the_last_was_due_unless_there_was_no_work() -> None:
    clock = VirtualClock(100.0)
    pace = Pace(clock)
    assert pace.due(1.0) == 101.0
    clock.sleep(1.2)
    assert pace.due(1.0) == 102.0  # what came between costs nothing
    clock.sleep(0.8)
    pace.rest()
    clock.sleep(0.5)
    assert pace.due(1.0) == 103.5
    clock.sleep(3.0)
    assert pace.due(1.0) == 106.5  # too late by more than a step: no hurry
