"""The life of an engine process: the whole table, and what follows from time."""

import pytest

from muro.errors import InternalError
from muro.process.lifecycle import TRANSITIONS, Lifecycle, State, Step

ALLOWED = {
    (State.STARTING, Step.READY): State.RUNNING,
    (State.STARTING, Step.STOP_NOW): State.STOPPED,
    (State.STARTING, Step.STOP_DRAIN): State.STOPPED,
    (State.RUNNING, Step.STOP_NOW): State.STOPPED,
    (State.RUNNING, Step.STOP_DRAIN): State.DRAINING,
    (State.DRAINING, Step.IDLE): State.STOPPED,
    (State.DRAINING, Step.DEADLINE): State.STOPPED,
    (State.STARTING, Step.FAIL): State.FAILED,
    (State.RUNNING, Step.FAIL): State.FAILED,
    (State.DRAINING, Step.FAIL): State.FAILED,
    (State.STOPPED, Step.FAIL): State.FAILED,
    (State.FAILED, Step.FAIL): State.FAILED,
}


def in_state(state: State) -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.state = state
    return lifecycle


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("step", Step)
def test_the_table(state: State, step: Step) -> None:
    lifecycle = in_state(state)
    if (state, step) in ALLOWED:
        assert lifecycle.fire(step) is ALLOWED[state, step] is lifecycle.state
    else:
        with pytest.raises(InternalError, match=f"that is {state.value} cannot {step.value}"):
            lifecycle.fire(step)
        assert lifecycle.state is state


def test_nothing_more_is_in_the_table() -> None:
    assert TRANSITIONS == ALLOWED


@pytest.mark.parametrize("state", State)
def test_what_counts_as_ended(state: State) -> None:
    assert in_state(state).ended == (state in (State.STOPPED, State.FAILED))


@pytest.mark.parametrize(
    ("state", "drain", "after"),
    [
        (State.STARTING, 0.0, State.STOPPED),
        (State.STARTING, 5.0, State.STOPPED),
        (State.RUNNING, 0.0, State.STOPPED),
        (State.RUNNING, 5.0, State.DRAINING),
        (State.STOPPED, 5.0, State.STOPPED),
        (State.FAILED, 0.0, State.FAILED),
    ],
)
def test_a_stop_is_asked_for(state: State, drain: float, after: State) -> None:
    lifecycle = in_state(state)
    lifecycle.ask_to_stop(100.0, drain)
    assert lifecycle.state is after


def test_asking_again_gives_no_more_time() -> None:
    lifecycle = in_state(State.RUNNING)
    lifecycle.ask_to_stop(100.0, 5.0)
    lifecycle.ask_to_stop(104.0, 5.0)
    lifecycle.tick(104.9, idle=False)
    assert lifecycle.state is State.DRAINING
    lifecycle.tick(105.0, idle=False)
    assert lifecycle.state is State.STOPPED


def test_draining_ends_when_nothing_is_left() -> None:
    lifecycle = in_state(State.RUNNING)
    lifecycle.ask_to_stop(100.0, 5.0)
    lifecycle.tick(100.0, idle=True)
    assert lifecycle.state is State.STOPPED


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING, State.STOPPED, State.FAILED])
def test_time_alone_ends_nothing_else(state: State) -> None:
    lifecycle = in_state(state)
    lifecycle.tick(1e9, idle=True)
    assert lifecycle.state is state
