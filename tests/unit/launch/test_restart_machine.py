"""Whether a dead engine gets a successor, against a model, under deaths at random times and of random causes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muro.config import RestartPolicy
from muro.errors import InternalError
from muro.launch.restart import RankState, Restarts
from muro.wire.failure import ExitCode
from tests.support.counts import count

STATUS = st.sampled_from([None, -9, -11, int(ExitCode.STOPPED), int(ExitCode.CONFIG), int(ExitCode.ENGINE_FAILED)])
RUNNING, BACKING_OFF, STARTING, GIVEN_UP, LEAVING = RankState


class RestartMachine(RuleBasedStateMachine):
    """One rank from its first engine to the end."""

    @initialize(policy=st.sampled_from(["never", "on-failure", "always"]), budget=st.integers(0, 4))
    def begin(self, policy: str, budget: int) -> None:
        self.policy = RestartPolicy(policy=policy, backoff_first=0.5, backoff_max=3.0, budget=budget, window=60.0)  # type: ignore[arg-type]
        self.rank = Restarts(self.policy)
        self.now = 100.0
        self.deaths: list[float] = []
        self.state = RUNNING
        self.due = 0.0
        self.generation = 0

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 20.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.state in (RUNNING, STARTING))
    @rule(status=STATUS)
    def it_dies(self, status: int | None) -> None:
        self.deaths.append(self.now)
        decision = self.rank.died(status, self.now)
        recent = len([death for death in self.deaths if self.now - death <= self.policy.window])
        wanted = self.policy.policy == "always" or (
            self.policy.policy == "on-failure" and status not in (ExitCode.STOPPED, ExitCode.CONFIG)
        )
        assert decision.restart == (wanted and recent <= self.policy.budget)
        assert decision.crash_loop == (wanted and recent > self.policy.budget)
        assert bool(decision.why) == (not decision.restart and self.policy.policy != "never")
        if decision.restart:
            assert decision.delay == min(0.5 * 2 ** (recent - 1), 3.0)
        self.state = BACKING_OFF if decision.restart else GIVEN_UP
        self.due = self.now + decision.delay

    @precondition(lambda self: self.state is not STARTING)
    @rule()
    def the_supervisor_looks(self) -> None:
        waits = self.state is BACKING_OFF
        assert self.rank.remaining(self.now) == (max(0.0, self.due - self.now) if waits else 0.0)
        generation = self.rank.start(self.now)
        assert (generation is not None) == (waits and self.now >= self.due)
        if generation is not None:
            self.generation += 1
            assert generation == self.generation
            self.state = STARTING

    @rule()
    def it_serves(self) -> None:
        if self.state is not STARTING:
            with pytest.raises(InternalError):
                self.rank.serves()
            return
        self.rank.serves()
        self.state = RUNNING

    @rule(sure=st.integers(0, 9))
    def somebody_lets_it_go(self, sure: int) -> None:
        if self.state is LEAVING:
            with pytest.raises(InternalError):
                self.rank.let_go()
        elif not sure:
            self.rank.let_go()
            self.state = LEAVING

    @invariant()
    def it_is_where_the_model_is(self) -> None:
        if hasattr(self, "rank"):
            assert (self.rank.state, self.rank.generation) == (self.state, self.generation)

    @invariant()
    def no_more_starts_than_the_budget_allows(self) -> None:
        if hasattr(self, "rank"):
            recent = [death for death in self.deaths if self.now - death <= self.policy.window]
            assert len(recent) <= self.policy.budget + 1


RestartMachine.TestCase.settings = settings(max_examples=count(60, 2000), stateful_step_count=50, deadline=None)
TestRestartMachine = RestartMachine.TestCase
