"""A clock that stands still until it is told otherwise, for everything that takes its clock as an argument."""

from __future__ import annotations


class ManualClock:
    """Call it for the time in seconds, like `time.monotonic`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
