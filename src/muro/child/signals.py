"""SIGTERM and SIGINT as facts: counted and a wake-up given, nothing else.

What a signal means is decided by the loop that is woken. The handler runs between two instructions of the
main thread, so `wake` may only do what cannot deadlock there: put into a `queue.SimpleQueue`, write to an
eventfd.

Invariants:
- Only the main thread installs and restores (Python allows no other).
- From `install` to `restore` no signal of the two cuts anything short, not even clean-up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from muro.errors import InternalError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Records requests to stop.

    Args:
        wake: called after each signal, in the main thread, between any two instructions.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._previous: dict[int, Any] = {}
        self.count = 0
        self.last: int | None = None

    @property
    def requested(self) -> bool:
        """Whether somebody asked this process to stop."""
        return self.count > 0

    def install(self) -> None:
        """Take the signals over; raises `InternalError` outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise InternalError("stop signals can be taken over in the main thread only")
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._record)

    def restore(self) -> None:
        """Give the signals back to the handlers found by `install`; does nothing if there are none."""
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.last = number
        self._wake()
