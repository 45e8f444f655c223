"""The tick policy of lockstep ranks, with a real loop and host around it, and a group in the test's hands."""

from typing import Any

import pytest

from muro.engine.events import Abort, Call, CoordinatorUp, PeersStep, Routed, StartWave
from muro.errors import CallFailedError, EngineDeadError
from muro.ids import COORDINATOR, ClientIndex, EngineRank
from muro.process.lockstep import Lockstep
from muro.process.reports import LoadReports
from muro.transport.page import ProgressPage
from muro.wire.output import FinishReason
from muro.wire.stats import SchedulerStats
from tests.support.looping import C0, Engine, Rig

LENGTH = FinishReason.LENGTH


class Group:
    """What the other ranks vote, one agreement after the other; afterwards they have nothing to do."""

    def __init__(self, *others: bool | Exception) -> None:
        self.others = list(others)
        self.mine: list[bool] = []

    def any_rank(self, mine: bool, timeout: float) -> bool:
        self.mine.append(mine)
        theirs = self.others.pop(0) if self.others else False
        if isinstance(theirs, Exception):
            raise theirs
        return mine or theirs


class Idling(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.dummies = 0
        self.asleep = False

    def execute_dummy_batch(self) -> None:
        self.dummies += 1
        if self.asleep:
            raise CallFailedError("the engine sleeps")


class LockstepRig(Rig):
    def __init__(
        self,
        page: ProgressPage,
        group: Group,
        *,
        rank: int = 1,
        interval: int = 4,
        told: bool = True,
        drain: float = 0.0,
    ) -> None:
        self.idling = Idling()
        self.group = group
        reports = LoadReports(EngineRank(rank), lambda: self.host.load, lambda: 0.0) if told else None
        self.policy = Lockstep(
            EngineRank(rank),
            self.idling,
            group,
            interval=interval,
            timeout=5.0,
            reports=reports,
            clock=lambda: 0.0,
        )
        super().__init__(page, policy=self.policy, engine=self.idling, drain=drain)

    def waves(self) -> list[tuple[ClientIndex, str, int]]:
        """What was said about waves, and to whom."""
        return [
            (routed.client, name, wave)
            for routed in self.sent()
            for name in ("start_wave", "wave_complete")
            if (wave := getattr(routed.message, name)) is not None
        ]


def test_a_wave_of_one_request(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(), rank=0)
    rig.add("a", max_tokens=3)
    rig.run_until_asleep()
    assert rig.group.mine == [True, False], "after the first step, and after the fourth"
    assert rig.idling.dummies == 1
    assert rig.waves() == [(COORDINATOR, "start_wave", 0), (COORDINATOR, "wave_complete", 0)]
    assert rig.policy.wave == 1 and not rig.policy.busy


def test_only_rank_0_tells_of_the_end(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group())
    rig.add("a")
    rig.run_until_asleep()
    assert rig.waves() == [(COORDINATOR, "start_wave", 0)]


def test_a_rank_without_work_steps_as_long_as_others_have_some(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(True, True, True), rank=0)
    rig.inbox.put(StartWave(3))
    rig.run_until_asleep()
    assert rig.group.mine == [False] * 4 and rig.idling.dummies == 12
    assert rig.waves() == [(COORDINATOR, "wave_complete", 3)]


def test_a_step_without_a_forward_is_filled_up(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group())
    rig.idling.stalled = 2
    rig.add("a", max_tokens=2)
    rig.run_until_asleep()
    assert rig.idling.dummies == 2 and rig.finishes() == {"a": [LENGTH]}
    assert "up to 0.001 s" not in rig.inbox.reads, "others must not wait for that"


@pytest.mark.parametrize("event", [StartWave(0, 1), PeersStep(0)], ids=["excluded", "called by another rank"])
def test_what_starts_a_rank_that_pauses(page: ProgressPage, event: Any) -> None:
    rig = LockstepRig(page, Group())
    rig.inbox.put(event)
    rig.run_until_asleep()
    assert rig.idling.dummies == 1 and rig.policy.wave == 1
    assert rig.waves() == []


@pytest.mark.parametrize("event", [CoordinatorUp(), Abort(C0, ["nobody"])])
def test_what_does_not(page: ProgressPage, event: Any) -> None:
    rig = LockstepRig(page, Group())
    rig.inbox.put(event)
    rig.run_until_asleep()
    assert rig.idling.dummies == 0 and rig.waves() == []


def test_old_news_of_a_wave_that_is_over(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group())
    rig.add("a")
    rig.run_until_asleep()
    dummies = rig.idling.dummies
    rig.inbox.put(StartWave(0))
    rig.run_until_asleep()
    assert rig.idling.dummies == dummies and rig.policy.wave == 1


def test_a_call_that_was_answered_meanwhile(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group())
    rig.idling.during = lambda step: rig.inbox.put(PeersStep(0)) if step == 1 else None
    rig.add("a", max_tokens=1)
    rig.run_until_asleep()
    assert rig.group.mine == [False] and rig.policy.wave == 1


def test_rank_0_tells_a_coordinator_that_starts_what_is_over(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(), rank=0)
    rig.add("a")
    rig.run_until_asleep()
    assert rig.waves()[-1] == (COORDINATOR, "wave_complete", 0)
    rig.inbox.put(StartWave(0))
    rig.run_until_asleep()
    assert rig.waves() == [(COORDINATOR, "wave_complete", 0)] and not rig.policy.busy


def test_fc37_work_that_comes_to_life_when_a_pause_ends_starts_a_wave(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group())
    rig.inbox.put(Call(C0, 1, "pause_scheduler", ["keep", False]))
    rig.add("a")
    rig.run_until_asleep()
    assert rig.idling.dummies == 0 and not rig.policy.busy and rig.waves() == []
    rig.inbox.put(Call(C0, 2, "resume_scheduler", []))
    rig.run_until_asleep()
    said = rig.sent()
    assert [r.message.start_wave for r in said if r.message.start_wave is not None] == [0]
    assert [o.finish_reason for r in said for o in r.message.outputs][-1] is LENGTH


def test_who_starts_waves_over_its_input_socket_hears_of_their_end(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(), rank=0, told=False)
    rig.inbox.put(StartWave(5, None, C0))
    rig.run_until_asleep()
    assert rig.waves() == [(C0, "wave_complete", 5)]


def test_a_coordinator_that_is_new_hears_that_a_wave_runs(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group())
    assert rig.policy.coordinator_up() == []
    rig.idling.during = lambda step: rig.outbox.put(rig.policy.coordinator_up()) if step == 2 else None
    rig.add("a")
    rig.run_until_asleep()
    assert rig.waves() == [(COORDINATOR, "start_wave", 0)] * 2


def test_reports_say_in_which_step_of_which_wave(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group())
    rig.inbox.put(StartWave(2))
    rig.add("a", max_tokens=3)
    rig.run_until_asleep()
    stats = [r.message.scheduler_stats for r in rig.sent() if r.client == COORDINATOR and r.message.scheduler_stats]
    assert stats[0].num_running_reqs == 0, "before it sleeps"
    assert stats[1] == SchedulerStats(1, 0, step_counter=1, current_wave=2)
    assert stats[-1].num_running_reqs == 0 and stats[-1].current_wave == 2


def test_the_rank_that_is_missing_is_named_when_the_engine_ends(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(EngineDeadError("lockstep rank 2 did not take part")))
    rig.add("a")
    with pytest.raises(EngineDeadError, match="rank 2"):
        rig.loop.run()


def test_a_rank_that_sleeps_takes_part(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(True, True))
    rig.idling.asleep = True
    rig.inbox.put(StartWave(0))
    rig.run_until_asleep()
    assert rig.idling.dummies == 8


def test_a_rank_that_drains_steps_until_the_others_have_finished_as_well(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(True, True), drain=60.0)
    rig.add("a", max_tokens=2)
    rig.idling.during = lambda step: rig.ask_to_stop() if step == 1 else None
    rig.loop.run()
    assert rig.finishes() == {"a": [LENGTH]}
    assert rig.group.mine == [True, False, False]


def test_a_rank_that_is_not_to_drain_ends_at_once(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(*[True] * 99))
    rig.inbox.put(StartWave(0))
    rig.idling.during = lambda step: None
    rig.group.any_rank = lambda mine, timeout: rig.ask_to_stop() or True  # type: ignore[method-assign,func-returns-value]
    rig.loop.run()
    assert rig.idling.dummies == 1


def test_routed_messages_hold_one_thing_each(page: ProgressPage) -> None:
    rig = LockstepRig(page, Group(), rank=0)
    rig.add("a")
    rig.run_until_asleep()
    for routed in rig.sent():
        assert isinstance(routed, Routed)
        parts = (routed.message.scheduler_stats, routed.message.start_wave, routed.message.wave_complete)
        assert routed.client != COORDINATOR or sum(part is not None for part in parts) == 1
