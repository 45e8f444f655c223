"""The queues between the I/O threads and the loop.

Invariants:
- `queue.SimpleQueue` only: its `put` is reentrant, so a signal handler may wake the loop with it
  (`queue.Queue.put` in a handler deadlocks when it interrupts itself).
- The input queue has many writers (receiver, signal handler, executor failure) and one reader, the loop.
  The output queue has many writers (loop, receiver's rejections, finished operations) and one reader, the
  sender. Neither ever blocks a writer: bounds are admission counters at the door.
"""

from __future__ import annotations

import enum
from queue import SimpleQueue

from muro.engine.events import WAKEUP, Event, Routed


class InputQueue(SimpleQueue[Event]):
    """Ordered events for the loop."""

    def wake(self) -> None:
        """Make a blocked reader look around; safe in a signal handler."""
        self.put(WAKEUP)


class Control(enum.Enum):
    """What the sender is told besides messages."""

    DEAD = "dead"
    """Send the death notice to every client, then end."""
    END = "end"
    """Send what is queued, then end."""


OutputQueue = SimpleQueue[list[Routed] | Control]
"""Routed messages for the sender, a list per step."""
