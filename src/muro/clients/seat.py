"""One receives, the others wait: how several threads share the output socket of one client.

Nobody has a thread of its own here. A thread that waits for something takes the *seat* if it is free and then
receives for everybody; the others sleep until what they wait for is there, or the seat is free. Invariants:

- The seat, every waiter's bell and whatever the conditions look at change under one lock, the client's state
  lock. It is entered with `with`: only so can Ctrl-C never leave it locked.
- A signal handler may run on top of the very code that holds the lock or the seat, which goes on only when the
  handler returns. So nobody enters the lock twice (it is an `RLock` because that one knows its owner), and nobody
  waits on top of the holder of the seat: both are refused.
- A waiter looks at its condition and arms its bell under the lock before it sleeps, so no ring is lost.
- Whoever leaves while the seat is free rings a sleeper, which takes over.
- Only the holder of the seat touches the output socket. `Seat.close` takes the seat for good.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from muro.errors import InternalError, UsageError

_ON_TOP = (
    "called on top of the same client, by a signal handler or a finalizer that interrupted this thread inside it: "
    "let the handler set a flag or hand the work to another thread, or give it a client of its own"
)


class Waiter:
    """A sleeping place for one thread. Everything but `sleep` is called under the state lock.

    The bell exists from the first `arm` on: who holds the seat never sleeps and needs none.
    """

    __slots__ = ("_bell", "_rung", "thread")

    def __init__(self) -> None:
        self._bell: threading.Lock | None = None
        self._rung = False
        self.thread = threading.get_ident()

    def ring(self) -> None:
        """Wake who sleeps here. Before `arm` there is nobody to wake: the condition is looked at after it."""
        if self._bell is not None and not self._rung:
            self._rung = True
            self._bell.release()

    def arm(self) -> None:
        """Get ready to sleep; forget earlier rings."""
        if self._bell is None:
            self._bell = threading.Lock()
            self._bell.acquire()
        elif self._rung and self._bell.acquire(blocking=False):
            self._rung = False

    def sleep(self, timeout: float | None) -> None:
        """Sleep until a ring or for `timeout` seconds."""
        if self._bell is None:
            raise InternalError("slept without a bell")
        if self._bell.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            self._rung = False


class Seat:
    """The one place from which the output socket is read.

    Args:
        lock: the client's state lock.
        interrupt: makes the holder of the seat look at its condition; called under the lock.
    """

    def __init__(self, lock: threading.RLock, interrupt: Callable[[], None]) -> None:
        self._lock = lock
        self._interrupt = interrupt
        self._holder: Waiter | None = None
        self._sleeping: dict[Waiter, None] = {}
        self._closed = False

    def wait(
        self,
        waiter: Waiter,
        done: Callable[[], bool],
        receive: Callable[[float | None], None],
        timeout: float | None,
    ) -> bool:
        """Wait until `done()` (called under the lock) is true, at most `timeout` seconds; whether it is.

        `receive(timeout)` waits for messages and handles them; it is called without the lock, by one thread at a
        time, and returns now and then. What it raises passes through. Raises UsageError on top of the holder.
        """
        self.check_may_wait()
        deadline = None if timeout is None else time.monotonic() + timeout
        tried = False
        try:
            while True:
                with self._lock:
                    if done():
                        return True
                    if self._holder is None and not self._closed:
                        self._holder = waiter
                    leading = self._holder is waiter
                    if not leading:
                        waiter.arm()
                        self._sleeping[waiter] = None
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if left == 0 and tried:
                    return False
                tried = True  # a timeout of 0 asks for what is there already
                if leading:
                    receive(left)
                else:
                    waiter.sleep(left)
        finally:
            with self._lock:
                self._leave(waiter)

    def ring(self, waiter: Waiter) -> None:
        """What `waiter` waits for may be there (under the lock)."""
        if self._holder is waiter:
            if waiter.thread != threading.get_ident():
                self._interrupt()
        else:
            waiter.ring()

    @property
    def locked_here(self) -> bool:
        """Whether this very thread is inside the state lock, further up its stack."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    def check_may_enter(self) -> None:
        """Raises UsageError if this thread is inside the state lock."""
        if self.locked_here:
            raise UsageError(_ON_TOP)

    def check_may_wait(self) -> None:
        """Raises UsageError if this thread is inside the state lock, or holds the seat."""
        if self.locked_here or self.held_here:
            raise UsageError(_ON_TOP)

    @property
    def free(self) -> bool:
        """Whether nobody holds the seat, nor has taken it for good."""
        return self._holder is None and not self._closed

    @property
    def held_here(self) -> bool:
        """Whether this very thread holds the seat, further up its stack."""
        holder = self._holder
        return holder is not None and holder.thread == threading.get_ident()

    def close(self, timeout: float) -> bool:
        """Take the seat for good, once its holder has left it; False if that takes longer than `timeout` seconds.

        Whatever made the holder's condition true must have been said to it before.
        """
        with self._lock:
            self._closed = True
            if self._holder is None:
                return True
            self._interrupt()
        return self.wait(Waiter(), lambda: self._holder is None, lambda left: None, timeout)

    def _leave(self, waiter: Waiter) -> None:
        self._sleeping.pop(waiter, None)
        if self._holder is waiter:
            self._holder = None
        if self._holder is None:  # even if the seat was not ours: we may have been rung in order to take it
            for sleeper in list(self._sleeping)[: None if self._closed else 1]:
                sleeper.ring()
