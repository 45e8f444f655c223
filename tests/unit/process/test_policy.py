"""A rank on its own has nothing to do beside stepping, but to tell a coordinator of its load."""

import pytest

from muro.engine.events import CoordinatorUp, StartWave, Wakeup
from muro.ids import COORDINATOR, EngineRank
from muro.process.policy import Independent, TickPolicy
from muro.process.reports import LoadReports
from muro.wire.output import EngineCoreOutputs
from muro.wire.stats import SchedulerStats


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize("has_work", [True, False])
def test_independent(executed: bool, has_work: bool) -> None:
    policy: TickPolicy = Independent()
    assert not policy.busy
    assert policy.after_step(executed, has_work) == policy.before_idle() == policy.coordinator_up() == []
    assert policy.heard(StartWave(0), has_work) == policy.heard(CoordinatorUp(), has_work) == []


def test_a_coordinator_is_told_the_load_when_it_changes_and_when_it_is_new() -> None:
    load = SchedulerStats(2, 1, kv_cache_usage=0.5)
    policy = Independent(LoadReports(EngineRank(3), lambda: load, lambda: 7.0))
    (routed,) = policy.after_step(True, True)
    assert routed.client == COORDINATOR
    assert routed.message == EngineCoreOutputs(3, scheduler_stats=load, timestamp=7.0)
    assert policy.after_step(True, True) == policy.before_idle() == policy.heard(Wakeup(), True) == []
    assert len(policy.heard(CoordinatorUp(), True)) == 1
    load = SchedulerStats(1, 1, kv_cache_usage=0.5)
    assert len(policy.before_idle()) == 1
