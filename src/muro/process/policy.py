"""What the loop does beside stepping: given to it, never inherited.

An independent rank steps when it has work. Lockstep ranks step together; see `lockstep.py`.
"""

from __future__ import annotations

from typing import Protocol

from muro.engine.events import CoordinatorUp, Event, Routed
from muro.process.reports import LoadReports


class TickPolicy(Protocol):
    """What happens around steps. All methods but `coordinator_up` are called in the loop's thread."""

    @property
    def busy(self) -> bool:
        """Whether the rank must go on stepping although it has no work."""
        ...

    def heard(self, event: Event, has_work: bool) -> list[Routed]:
        """Called with each event that the host has handled; what it returns is sent."""
        ...

    def after_step(self, executed: bool, has_work: bool) -> list[Routed]:
        """Called after each step of the host, and instead of one while `busy` without work."""
        ...

    def before_idle(self) -> list[Routed]:
        """Called before the loop sleeps."""
        ...

    def coordinator_up(self) -> list[Routed]:
        """The coordinator has said READY again (receiver thread): what it must know at once."""
        ...


class Independent:
    """A rank on its own. If there is a coordinator, it is told the load.

    Args:
        reports: None without a coordinator.
    """

    busy = False

    def __init__(self, reports: LoadReports | None = None) -> None:
        self._reports = reports

    def heard(self, event: Event, has_work: bool) -> list[Routed]:
        if self._reports is None or not isinstance(event, CoordinatorUp):
            return []
        return self._reports.anew()

    def after_step(self, executed: bool, has_work: bool) -> list[Routed]:
        return [] if self._reports is None else self._reports.changed()

    def before_idle(self) -> list[Routed]:
        return [] if self._reports is None else self._reports.changed()

    def coordinator_up(self) -> list[Routed]:
        return []
