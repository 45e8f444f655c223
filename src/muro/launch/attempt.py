"""One attempt to start a successor, in a thread of its own, so that whoever supervises goes on supervising.

Invariants:
- The thread lives no longer than the attempt. `cancel` ends it within the time that killing a child takes.
- Its outcome is picked up once: by `take`, or, after `abandon`, by the thread itself, which then ends what it started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from muro.ids import EngineRank, Generation
from muro.launch.spawn import Child
from muro.launch.startup import StartupProgress
from muro.transport.wakeup import Wakeup
from muro.wire.handshake import ReadyResponse

OnProgress = Callable[[StartupProgress], None]


class Replacement(msgspec.Struct, frozen=True):
    """A successor that is ready."""

    child: Child
    ready: ReadyResponse


class Replace(Protocol):
    """Starts a successor and returns when it is ready; called in a thread of its own."""

    def __call__(
        self, rank: EngineRank, generation: Generation, *, on_progress: OnProgress, cancel: Wakeup
    ) -> Replacement:
        """Raises StartupError, also when `cancel` was set; then nothing that was started is left."""
        ...


class Attempt:
    """Ends a dead child for good, if there is one, then starts its successor.

    Args:
        replace: does the work.
        previous: the dead child, None for a new rank; whatever it has left behind is ended, and its handle closed.
        on_done: called in the attempt's thread when there is an outcome.
    """

    def __init__(
        self,
        replace: Replace,
        rank: EngineRank,
        generation: Generation,
        previous: Child | None,
        on_done: Callable[[], None],
        on_progress: OnProgress,
    ) -> None:
        self.generation = generation
        self.progress: StartupProgress | None = None
        self._replace = replace
        self._rank = rank
        self._previous = previous
        self._on_done = on_done
        self._on_progress = on_progress
        self._cancel = Wakeup()
        self._lock = threading.RLock()
        self._outcome: Replacement | Exception | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"muro-restart-{rank}", daemon=True)

    def begin(self) -> None:
        """Start the thread. Raises what the operating system refuses."""
        self._cancel.open()
        try:
            self._thread.start()
        except BaseException:
            self._cancel.close()
            raise

    def take(self) -> Replacement | Exception | None:
        """The outcome, if there is one by now."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return outcome

    def cancel(self) -> None:
        """Give it up; does not wait."""
        with self._lock:
            self._cancel.set()

    def abandon(self, timeout: float) -> Child | None:
        """Cancel it and wait up to `timeout` seconds. Gives the child that came up all the same; the caller ends it."""
        self.cancel()
        if threading.current_thread() is not self._thread:  # a finalizer may run in any thread
            self._thread.join(timeout)
        with self._lock:
            self._abandoned = True
            outcome, self._outcome = self._outcome, None
        return outcome.child if isinstance(outcome, Replacement) else None

    def _run(self) -> None:
        outcome: Replacement | Exception
        try:
            if self._previous is not None:
                self._previous.close()
            outcome = self._replace(self._rank, self.generation, on_progress=self._progressed, cancel=self._cancel)
        except Exception as error:
            outcome = error
        with self._lock:
            abandoned = self._abandoned
            self._outcome = None if abandoned else outcome
            self._cancel.close()
        if not abandoned:
            self._on_done()
        elif isinstance(outcome, Replacement):
            outcome.child.close()

    def _progressed(self, progress: StartupProgress) -> None:
        self.progress = progress
        self._on_progress(progress)
