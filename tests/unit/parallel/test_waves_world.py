"""FC-37: whatever the order in which things happen, at rest all ranks are idle and no request is left behind."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.parallel.waves import CoordinatorWave, EngineWave, Orders, Rule
from tests.support.counts import count
from tests.support.wave_world import Setting, World

NOTIFIES, ENGINES_START = Rule.FRONT_END_NOTIFIES, Rule.ENGINES_START

KINDS = {
    "0.33": {"rule": ENGINES_START},
    "0.25": {"rule": NOTIFIES},
    "0.25 engines": {"rule": NOTIFIES, "old_engines": True, "pauses": 0, "aborts": 0},
    "0.25 engines and coordinator": {
        "rule": NOTIFIES,
        "old_engines": True,
        "old_coordinator": True,
        "pauses": 0,
        "aborts": 0,
    },
    "0.25 coordinator": {"rule": NOTIFIES, "old_coordinator": True},
    "0.33 coordinator": {"rule": ENGINES_START, "old_coordinator": True},
    "0.33, it dies": {"rule": ENGINES_START, "crashes": 2},
    "0.25, it dies": {"rule": NOTIFIES, "crashes": 2},
    "votes wake, it dies": {"rule": ENGINES_START, "votes_wake": True, "crashes": 1},
    "over the input sockets": {"over_inputs": True, "votes_wake": True, "front_ends": 1},
}
"""What is tried, each the same number of times."""


def setting(kind: str, rng: random.Random) -> Setting:
    return Setting(
        ranks=rng.randint(2, 8),
        requests=rng.randint(1, 6),
        interval=rng.randint(1, 4),
        **{"front_ends": rng.randint(1, 3), **KINDS[kind]},
    )


@pytest.mark.cases
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_fc37_at_rest_all_are_idle_and_nothing_is_left_behind(kind: str) -> None:
    for seed in range(count(150, 10_500)):
        rng = random.Random(f"{kind} {seed}")
        try:
            World(setting(kind, rng), rng.randrange).run()
        except AssertionError as fault:
            raise AssertionError(f"{kind}, seed {seed}: {fault}") from fault


@pytest.mark.timeout(900)
@settings(deadline=None, max_examples=count(50, 1000))
@given(data=st.data(), ranks=st.integers(2, 4), kind=st.sampled_from(sorted(KINDS)))
def test_fc37_the_shortest_way_to_a_fault(data: st.DataObject, ranks: int, kind: str) -> None:
    small = Setting(ranks=ranks, requests=3, **{"front_ends": 1, **KINDS[kind]})
    World(small, lambda n: data.draw(st.integers(0, n - 1))).run()


def fails(kind: str, seeds: int) -> bool:
    for seed in range(seeds):
        rng = random.Random(seed)
        try:
            World(setting(kind, rng), rng.randrange).run()
        except AssertionError:
            return True
    return False


def test_the_world_sees_engines_that_wait_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that say nothing, with front-ends that do not either (protocol section 15.4, its last remark)."""
    monkeypatch.setattr(EngineWave, "has_work", lambda self: setattr(self, "running", True))
    assert fails("0.33", 20)


def test_the_world_sees_a_coordinator_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoordinatorWave, "engine_started", lambda self, rank, wave: Orders())
    assert fails("0.33", 20)


def test_the_world_sees_engines_that_do_not_tell_a_new_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineWave, "coordinator_up", lambda self: None)
    assert fails("0.33, it dies", 400)


def test_the_world_sees_old_news_taken_for_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineWave, "told_to_start", lambda self, wave: setattr(self, "running", True))
    assert fails("0.33", 400)
