"""Whether and when an engine that has died gets a successor. Pure: time is an argument.

One `Restarts` per rank: a table of states, and the deaths within the budget's window. The n-th death within the window
is followed by a start after `backoff_first` times 2 to the n-1 seconds, at most `backoff_max`; a death over the budget
is a crash loop, and final. A successor that dies before it serves counts like any other.
"""

from __future__ import annotations

import enum
from collections import deque

import msgspec

from muro.config import RestartPolicy
from muro.errors import InternalError
from muro.ids import Generation
from muro.wire.failure import ExitCode


class RankState(enum.Enum):
    """Where the engine of a rank is."""

    RUNNING = "running"
    BACKING_OFF = "backing off"
    """It is dead; its successor waits to be started."""
    STARTING = "starting"
    GIVEN_UP = "given up"
    LEAVING = "leaving"
    """Somebody wants it no more."""


_FIRST = Generation(0)

TRANSITIONS = {
    (RankState.RUNNING, "restarted"): RankState.BACKING_OFF,
    (RankState.RUNNING, "given up"): RankState.GIVEN_UP,
    (RankState.BACKING_OFF, "due"): RankState.STARTING,
    (RankState.STARTING, "serves"): RankState.RUNNING,
    (RankState.STARTING, "restarted"): RankState.BACKING_OFF,
    (RankState.STARTING, "given up"): RankState.GIVEN_UP,
    (RankState.RUNNING, "let go"): RankState.LEAVING,
    (RankState.BACKING_OFF, "let go"): RankState.LEAVING,
    (RankState.STARTING, "let go"): RankState.LEAVING,
    (RankState.GIVEN_UP, "let go"): RankState.LEAVING,
}
"""What may happen to a rank, and where it is then. A death is "restarted" or "given up"."""


class Decision(msgspec.Struct, frozen=True):
    """What follows from a death."""

    restart: bool
    delay: float = 0.0
    """Seconds until the start, if there is one."""
    crash_loop: bool = False
    why: str = ""
    """Why there is none although the policy knows restarts, in people's words."""


class Restarts:
    """The engine of one rank and its successors; the first is of `generation`, and serves."""

    def __init__(self, policy: RestartPolicy, generation: Generation = _FIRST) -> None:
        self._policy = policy
        self._deaths: deque[float] = deque()
        self._due = 0.0
        self.state = RankState.RUNNING
        self.generation = generation
        """The latest one, whether it serves, starts or has died."""

    @property
    def deaths(self) -> int:
        """Deaths within the window, as of the last one."""
        return len(self._deaths)

    def died(self, status: int | None, now: float) -> Decision:
        """The latest generation has died: exit code, or minus the signal's number, or None if that is not known yet."""
        while self._deaths and now - self._deaths[0] > self._policy.window:
            self._deaths.popleft()
        self._deaths.append(now)
        decision = self._decide(status)
        self._move("restarted" if decision.restart else "given up")
        self._due = now + decision.delay
        return decision

    def remaining(self, now: float) -> float:
        """Seconds until the successor is to be started; 0 if it is due or none waits."""
        return max(0.0, self._due - now) if self.state is RankState.BACKING_OFF else 0.0

    def start(self, now: float) -> Generation | None:
        """The next generation, if it is to be started now."""
        if self.state is not RankState.BACKING_OFF or now < self._due:
            return None
        self._move("due")
        self.generation = Generation(self.generation + 1)
        return self.generation

    def serves(self) -> None:
        """The generation that was being started is ready."""
        self._move("serves")

    def let_go(self) -> None:
        """It shall end, and not come back."""
        self._move("let go")

    def _decide(self, status: int | None) -> Decision:
        policy = self._policy
        if policy.policy == "never":
            return Decision(False)
        if policy.policy == "on-failure" and status == ExitCode.STOPPED:
            return Decision(False, why="its exit code is 0, which is no failure (policy on-failure)")
        if policy.policy == "on-failure" and status == ExitCode.CONFIG:
            return Decision(False, why="its settings are wrong, so starting it again cannot help (policy on-failure)")
        if len(self._deaths) > policy.budget:
            why = f"it has died {len(self._deaths)} times within {policy.window:g} s; the restart budget is exhausted"
            return Decision(False, crash_loop=True, why=why)
        doublings = min(len(self._deaths) - 1, 63)
        return Decision(True, delay=min(policy.backoff_first * 2**doublings, policy.backoff_max))

    def _move(self, event: str) -> None:
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise InternalError(f"an engine that is {self.state.value} cannot have {event!r}") from None
