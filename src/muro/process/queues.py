"""The queues between the I/O threads and the loop.

Invariants:
- The input queue is a `queue.SimpleQueue`: its `put` is reentrant, so a signal handler may wake the loop with it
  (`queue.Queue.put` in a handler deadlocks when it interrupts itself).
- The input queue has many writers (receiver, signal handler, executor failure) and one reader, the loop.
  The output queue has many writers (loop, receiver's rejections, finished operations) and one reader at a time, who
  has its `turn`. Neither ever blocks a writer: bounds are admission counters at the door.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from queue import Empty, SimpleQueue

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


AHEAD = 4
"""Items that may wait for the sender before the loop lets it work."""
CAUGHT_UP = 2
"""Items that may still wait when the loop goes on."""


class OutputQueue:
    """Routed messages for the sender, a list per step.

    Items are taken and sent under `turn`. So whoever has the turn and finds nothing here knows that all there was has
    been sent, and may send what comes next without putting it here first.

    A loop that runs far ahead only makes memory that nobody reads yet, and takes the interpreter lock from the
    very thread that it waits for. So it asks `runs_ahead`, and if so waits for input; the sender, before it takes
    an item, asks `caught_up`, and if so wakes it. The loop looks at the length again after it has said that it
    waits: then there are items left at which the sender will ask.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._items: deque[list[Routed] | Control] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._waited_for = False

    def put(self, item: list[Routed] | Control) -> None:
        """Add an item and wake the sender (any thread)."""
        self._items.append(item)
        self._bell.put(None)

    def wake(self) -> None:
        """Make `wait` return although there is no item."""
        self._bell.put(None)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until there is an item, at most `timeout` seconds (sender thread)."""
        try:
            self._bell.get(timeout=timeout)
        except Empty:
            return

    def take(self) -> list[Routed] | Control | None:
        """The next item, or None (who has the turn)."""
        return self._items.popleft() if self._items else None

    def __len__(self) -> int:
        return len(self._items)

    def runs_ahead(self) -> bool:
        """Whether the loop should wait until it is woken (loop thread)."""
        if len(self) <= AHEAD:
            return False
        self._waited_for = True
        return len(self) > CAUGHT_UP

    def caught_up(self) -> bool:
        """Whether the loop is to be woken now (sender thread)."""
        if not self._waited_for or len(self) > CAUGHT_UP:
            return False
        self._waited_for = False
        return True
