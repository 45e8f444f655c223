"""Waking a poll from another thread or from a signal handler.

One eventfd. `set` may be called from any thread and from a signal handler, `close` from any thread: a lock that its
holder may take again sees to it that nobody writes to a number which was closed, and may be somebody else's by now.
Does not say who called or how often; a waker puts its message into a queue first and sets afterwards.
"""

from __future__ import annotations

import contextlib
import os
import threading


class Wakeup:
    """A descriptor that turns readable when `set` is called and stays so until `clear`.

    The constructor opens nothing; `open` (or `with`) does. Before and after, `set` and `clear` do nothing.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._lock = threading.RLock()

    def open(self) -> Wakeup:
        """Open the descriptor; returns itself. Opening twice keeps the first one."""
        if self._fd < 0:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self

    def set(self) -> None:
        """Make the descriptor readable."""
        # The counter may be full; then it is readable already.
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> bool:
        """Make it unreadable again; whether it had been set. Clear first, then look into the queue."""
        if self._fd < 0:
            return False
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """The descriptor to poll for reading; -1 if closed."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        with self._lock:
            fd, self._fd = self._fd, -1  # first: a signal may come between, and set it
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Wakeup:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()
