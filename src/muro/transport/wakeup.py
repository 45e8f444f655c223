"""Waking a poll from another thread or from a signal handler.

One eventfd. `set` may be called from any thread and from a signal handler: it takes no lock and one system
call. Does not say who called or how often; a waker puts its message into a queue first and sets afterwards.
"""

from __future__ import annotations

import contextlib
import os


class Wakeup:
    """A descriptor that turns readable when `set` is called and stays so until `clear`.

    The constructor opens nothing; `open` (or `with`) does. Before and after, `set` and `clear` do nothing; but
    close it only when no other thread can be inside `set`, whose descriptor number might be somebody else's by then.
    """

    def __init__(self) -> None:
        self._fd = -1

    def open(self) -> Wakeup:
        """Open the descriptor; returns itself. Opening twice keeps the first one."""
        if self._fd < 0:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self

    def set(self) -> None:
        """Make the descriptor readable."""
        fd = self._fd
        if fd >= 0:
            with contextlib.suppress(BlockingIOError):  # the counter is full, so it is readable already
                os.eventfd_write(fd, 1)

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
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Wakeup:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()
