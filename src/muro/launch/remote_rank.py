"""The engine of one rank that was started elsewhere. Pure, and a table.

    serving --lost--> awaited --hello--> joining --ready--> serving
       |                 ^------gone--------'
       `-given up--> given up

Who starts its successor, when and how often, is not known here: it dials, or it does not.
"""

from __future__ import annotations

import enum

from muro.ids import EngineRank, Generation


class RemoteState(enum.Enum):
    """Where the engine of a rank is."""

    SERVING = "serving"
    AWAITED = "awaited"
    """It is lost; a successor may dial."""
    JOINING = "joining"
    """A successor has said HELLO."""
    GIVEN_UP = "given up"


TRANSITIONS = {
    (RemoteState.SERVING, "lost"): RemoteState.AWAITED,
    (RemoteState.SERVING, "given up"): RemoteState.GIVEN_UP,
    (RemoteState.AWAITED, "hello"): RemoteState.JOINING,
    (RemoteState.JOINING, "hello"): RemoteState.JOINING,
    (RemoteState.JOINING, "gone"): RemoteState.AWAITED,
    (RemoteState.JOINING, "ready"): RemoteState.SERVING,
}
"""What may happen to a rank, and where it is then. Everything else changes nothing."""


class RemoteRank:
    """One rank; `now` in seconds."""

    def __init__(self, rank: EngineRank) -> None:
        self.rank = rank
        self.state = RemoteState.SERVING
        self.generation = Generation(0)
        """The latest one that serves, served or joins."""
        self.lost_at = 0.0

    def lost(self, now: float, *, awaited: bool) -> bool:
        """The engine that serves has gone; whether that was news."""
        if not self._move("lost" if awaited else "given up"):
            return False
        self.lost_at = now
        return True

    def hello(self) -> bool:
        """A successor greets, or one in the place of another; whether it may come in."""
        if not self._move("hello"):
            return False
        self.generation = Generation(self.generation + 1)
        return True

    def gone(self) -> bool:
        """The successor has gone before it was ready; whether there was one."""
        return self._move("gone")

    def ready(self, now: float) -> float:
        """The successor serves; gives the seconds since the loss."""
        self._move("ready")
        return now - self.lost_at

    def _move(self, event: str) -> bool:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        self.state = after
        return True
