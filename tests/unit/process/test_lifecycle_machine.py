"""The life of an engine process against a model, under events in any order and a clock that only goes forward."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muro.errors import InternalError
from muro.process.lifecycle import TRANSITIONS, Lifecycle, State, Step
from tests.support.counts import count


class LifecycleMachine(RuleBasedStateMachine):
    """Stops are asked for again and again, with time left or none; some of what happens is a bug of the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Lifecycle()
        self.now = 0.0
        self.state = State.STARTING
        self.until: float | None = None
        self.history = [State.STARTING]

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(drain=st.sampled_from([0.0, 0.5, 8.0]))
    def a_stop_is_asked_for(self, drain: float) -> None:
        self.life.ask_to_stop(self.now, drain)
        if self.state is State.RUNNING and drain > 0:
            self.become(State.DRAINING)
            self.until = self.now + drain
        elif self.state in (State.STARTING, State.RUNNING):
            self.become(State.STOPPED)

    @rule(idle=st.booleans())
    def the_loop_ticks(self, idle: bool) -> None:
        self.life.tick(self.now, idle)
        if self.state is State.DRAINING and (idle or (self.until is not None and self.now >= self.until)):
            self.become(State.STOPPED)

    @rule(step=st.sampled_from([Step.READY, Step.READY, Step.FAIL, Step.IDLE, Step.STOP_DRAIN]))
    def something_fires(self, step: Step) -> None:
        wanted = TRANSITIONS.get((self.state, step))
        try:
            assert self.life.fire(step) is wanted
        except InternalError:
            assert wanted is None
            return
        assert wanted is not None
        self.become(wanted)
        if step is Step.STOP_DRAIN:
            self.until = None  # nobody said how long

    def become(self, state: State) -> None:
        self.state = state
        self.history.append(state)

    @invariant()
    def it_is_where_the_model_is(self) -> None:
        assert self.life.state is self.state
        assert self.life.ended == (self.state in (State.STOPPED, State.FAILED))

    @invariant()
    def nothing_comes_back_to_life(self) -> None:
        order = [State.STARTING, State.RUNNING, State.DRAINING, State.STOPPED, State.FAILED]
        places = [order.index(state) for state in self.history]
        assert places == sorted(places)


LifecycleMachine.TestCase.settings = settings(max_examples=count(60, 2000), stateful_step_count=30, deadline=None)
TestLifecycleMachine = LifecycleMachine.TestCase
