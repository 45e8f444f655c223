"""When a dead engine gets a successor: the back-off, the budget, and what no restart can help."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.config import RestartPolicy
from muro.errors import ConfigError, InternalError
from muro.launch.restart import TRANSITIONS, RankState, Restarts
from muro.wire.failure import ExitCode

POLICY = RestartPolicy(policy="on-failure", backoff_first=0.1, backoff_max=1.0, budget=6, window=60.0)


def restarted(rank: Restarts, now: float) -> float:
    """One death, one successor that serves; gives the back-off."""
    decision = rank.died(-9, now)
    assert decision.restart
    assert rank.start(now + decision.delay * 0.99 - 1e-6) is None
    assert rank.start(now + decision.delay) is not None
    rank.serves()
    return decision.delay


def test_the_back_off_doubles_up_to_its_limit_and_begins_anew_after_a_quiet_window() -> None:
    rank = Restarts(POLICY)
    assert [restarted(rank, float(second)) for second in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert rank.generation == 6
    assert restarted(rank, 5.0 + 60.1) == 0.1


def test_a_death_over_the_budget_is_a_crash_loop_and_final() -> None:
    rank = Restarts(POLICY)
    for second in range(6):
        restarted(rank, float(second))
    decision = rank.died(-9, 6.0)
    assert decision.crash_loop and not decision.restart and "7 times within 60 s" in decision.why
    assert rank.state is RankState.GIVEN_UP
    assert rank.start(1e9) is None and rank.remaining(0.0) == 0.0
    with pytest.raises(InternalError):
        rank.died(-9, 7.0)


@pytest.mark.parametrize(
    ("policy", "status", "restart"),
    [
        ("never", -9, False),
        ("never", None, False),
        ("on-failure", -9, True),
        ("on-failure", None, True),
        ("on-failure", ExitCode.ENGINE_FAILED, True),
        ("on-failure", ExitCode.STARTUP_FAILED, True),
        ("on-failure", ExitCode.STOPPED, False),
        ("on-failure", ExitCode.CONFIG, False),
        ("always", ExitCode.STOPPED, True),
        ("always", ExitCode.CONFIG, True),
    ],
)
def test_which_ends_are_followed_by_a_start(policy: str, status: int | None, restart: bool) -> None:
    decision = Restarts(RestartPolicy(policy=policy)).died(status, 0.0)  # type: ignore[arg-type]
    assert decision.restart is restart and not decision.crash_loop
    assert bool(decision.why) is (not restart and policy != "never")


def test_the_table_leads_nowhere_but_to_where_it_says() -> None:
    assert {state for state, _ in TRANSITIONS} == set(RankState) - {RankState.LEAVING}
    assert set(TRANSITIONS.values()) == set(RankState)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(0, 5), st.floats(1, 100))
def test_there_are_never_more_starts_in_a_window_than_the_budget_allows(
    gaps: list[float], budget: int, window: float
) -> None:
    rank = Restarts(RestartPolicy(policy="always", budget=budget, window=window, backoff_first=0.5, backoff_max=4.0))
    now, starts = 0.0, []
    for gap in gaps:
        now += gap
        decision = rank.died(-9, now)
        if not decision.restart:
            assert decision.crash_loop
            break
        assert 0.5 <= decision.delay <= 4.0
        now += decision.delay
        assert rank.start(now) is not None
        starts.append(now - decision.delay)
        rank.serves()
    assert all(sum(start <= at <= start + window for at in starts) <= budget for start in starts)


@pytest.mark.parametrize(
    "wrong", [{"backoff_first": -1.0}, {"backoff_first": 5.0, "backoff_max": 1.0}, {"budget": -1}, {"window": 0.0}]
)
def test_policies_that_make_no_sense(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        RestartPolicy(**wrong)
