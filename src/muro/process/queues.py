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
    LOST = "lost"
    """Nobody listens any more: end."""


AHEAD = 16
"""Items that may wait for the sender before the loop lets it work."""
CAUGHT_UP = 8
"""Items that may still wait when the loop goes on."""


class OutputQueue(SimpleQueue[list[Routed] | Control]):
    """Routed messages for the sender, a list per step.

    A loop that runs far ahead only makes memory that nobody reads yet, and takes the interpreter lock from the
    very thread that it waits for. So it asks `runs_ahead`, and if so waits for input; the sender, before it takes
    an item, asks `caught_up`, and if so wakes it. The loop looks at the length again after it has said that it
    waits: then there are items left at which the sender will ask.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waited_for = False

    def runs_ahead(self) -> bool:
        """Whether the loop should wait until it is woken (loop thread)."""
        if self.qsize() <= AHEAD:
            return False
        self._waited_for = True
        return self.qsize() > CAUGHT_UP

    def caught_up(self) -> bool:
        """Whether the loop is to be woken now (sender thread)."""
        if not self._waited_for or self.qsize() > CAUGHT_UP:
            return False
        self._waited_for = False
        return True
