"""The states of an engine process, as a table.

    starting --ready--> running --stop_now----------------------> stopped
       |                   `------stop_drain--> draining --idle-----^
       |                                           `----deadline----^
       `--stop_now, stop_drain--> stopped
    any state --fail--> failed

Time is an argument. Signals are not known here: who fires an event is the loop's business.
"""

from __future__ import annotations

import enum

from muro.errors import InternalError


class State(enum.Enum):
    """Where an engine process is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class Step(enum.Enum):
    """What can happen to an engine process."""

    READY = "ready"
    STOP_NOW = "stop_now"
    STOP_DRAIN = "stop_drain"
    IDLE = "idle"
    DEADLINE = "deadline"
    FAIL = "fail"


TRANSITIONS: dict[tuple[State, Step], State] = {
    (State.STARTING, Step.READY): State.RUNNING,
    (State.STARTING, Step.STOP_NOW): State.STOPPED,
    (State.STARTING, Step.STOP_DRAIN): State.STOPPED,
    (State.RUNNING, Step.STOP_NOW): State.STOPPED,
    (State.RUNNING, Step.STOP_DRAIN): State.DRAINING,
    (State.DRAINING, Step.IDLE): State.STOPPED,
    (State.DRAINING, Step.DEADLINE): State.STOPPED,
} | {(state, Step.FAIL): State.FAILED for state in State}


class Lifecycle:
    """The state of one engine process, and until when it may drain."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self.drain_until: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in (State.STOPPED, State.FAILED)

    def fire(self, step: Step) -> State:
        """Take a transition. Raises InternalError for one that is not in the table."""
        try:
            self.state = TRANSITIONS[self.state, step]
        except KeyError:
            raise InternalError(f"an engine process that is {self.state.value} cannot {step.value}") from None
        return self.state

    def ask_to_stop(self, now: float, drain: float) -> None:
        """A stop was asked for; running requests have `drain` seconds left. Later requests change nothing."""
        if self.state in (State.STARTING, State.RUNNING):
            self.fire(Step.STOP_DRAIN if drain > 0 else Step.STOP_NOW)
            self.drain_until = now + drain

    def tick(self, now: float, idle: bool) -> None:
        """While draining: stop when nothing is left or when time is up."""
        if self.state is State.DRAINING:
            if idle:
                self.fire(Step.IDLE)
            elif self.drain_until is not None and now >= self.drain_until:
                self.fire(Step.DEADLINE)
