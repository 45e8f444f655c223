"""What the loop does after a step, besides going on: given to it, never inherited.

Independent ranks have nothing to do. Lockstep ranks (data parallel) will be another policy.
"""

from __future__ import annotations

from typing import Protocol

from muro.engine.events import Routed


class TickPolicy(Protocol):
    """What happens after each step."""

    def after_step(self, executed: bool, has_work: bool) -> list[Routed]:
        """Called after each step; what it returns is sent."""
        ...


class Independent:
    """A rank on its own."""

    def after_step(self, executed: bool, has_work: bool) -> list[Routed]:
        return []
