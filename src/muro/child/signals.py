"""SIGTERM, SIGINT and SIGHUP as facts: counted and a wake-up given, nothing else, until somebody insists.

What a signal means is decided by the loop that is woken. It is counted by a thread of its own that reads Python's
wake-up pipe, and not by a handler: handlers run in the main thread, which may sit in a lock, and the kernel may
give a process's signal to any other thread (it does so when a stopped process is continued). The main thread would
then hear of it only when something else wakes it.

Invariants:
- Only the main thread installs and restores (Python allows no other).
- From `install` to `restore` none of these signals cuts anything short, not even clean-up, but the `FORCE_AFTER`th:
  it ends the process at once with 128 + its number.
- A process that is forked meanwhile is rid of all this: the signals do what they do by default there.
- A SIGHUP that is ignored, as under nohup, stays ignored.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from muro.errors import InternalError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FORCE_AFTER = 5
"""The so many-th stop signal ends a process at once."""
_END = 0


def heeded() -> list[signal.Signals]:
    """The stop signals to take over: all, but a SIGHUP that is ignored."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


class StopSignals:
    """Records requests to stop, between `install` and `restore` or in a `with`.

    Args:
        wake: called after each signal, in another thread.
        force: called with the number of the `FORCE_AFTER`th signal, in another thread.
    """

    def __init__(self, wake: Callable[[], None], force: Callable[[int], None] | None = None) -> None:
        self._wake = wake
        self._force = force or (lambda number: os._exit(128 + number))
        self._previous: dict[int, Any] = {}
        self._previous_fd = -1
        self._pipe = -1
        self._thread: threading.Thread | None = None
        self.count = 0
        self.last: int | None = None

    @property
    def requested(self) -> bool:
        """Whether somebody asked this process to stop."""
        return self.count > 0

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()

    def install(self) -> None:
        """Take the signals over; raises `InternalError` outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise InternalError("stop signals can be taken over in the main thread only")
        read_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        self._previous_fd = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._count, args=(read_end,), name="muro-signals", daemon=True)
        self._thread.start()
        for number in heeded():
            self._previous[number] = signal.signal(number, _noted)
        _installed.append(self)

    def restore(self) -> None:
        """Give the signals back to the handlers found by `install`; does nothing if there are none."""
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self._thread is not None:
            _installed.remove(self)
            signal.set_wakeup_fd(self._previous_fd)
            os.write(self._pipe, bytes([_END]))
            self._thread.join()
            self._thread = None
            os.close(self._pipe)

    def _count(self, read_end: int) -> None:
        with open(read_end, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                for number in numbers:
                    if number == _END:
                        return
                    if number in STOP_SIGNALS:
                        self._record(number)

    def _record(self, number: int) -> None:
        self.count += 1
        self.last = number
        self._wake()
        if self.count == FORCE_AFTER:
            self._force(number)


def _noted(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal is written to the wake-up pipe."""


_installed: list[StopSignals] = []


def _after_fork() -> None:
    if _installed:
        signal.set_wakeup_fd(-1)
        for number in list(_installed[-1]._previous):
            signal.signal(number, signal.SIG_DFL)
        _installed.clear()


os.register_at_fork(after_in_child=_after_fork)
