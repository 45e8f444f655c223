"""One attempt to start successors, in a thread of its own, so that whoever supervises goes on supervising.

Invariants:
- The thread lives no longer than the attempt. `cancel` ends it within the time that killing a child takes.
- Its outcome is picked up once: by `take`, or, after `abandon`, by the thread itself, which then ends what it started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from muro.ids import EngineRank, Generation
from muro.launch.handle import ChildHandle
from muro.launch.startup import StartupProgress
from muro.transport.wakeup import Wakeup
from muro.wire.handshake import ReadyResponse

OnProgress = Callable[[StartupProgress], None]


class Replacement(msgspec.Struct, frozen=True):
    """A successor that is ready."""

    child: ChildHandle
    ready: ReadyResponse


Replacements = Mapping[EngineRank, Replacement]


class Replace(Protocol):
    """Starts successors and returns when all are ready; called in a thread of its own."""

    def __call__(
        self, ranks: Sequence[EngineRank], generation: Generation, *, on_progress: OnProgress, cancel: Wakeup
    ) -> Replacements:
        """Raises StartupError, also when `cancel` was set; then nothing that was started is left."""
        ...


class Attempt:
    """Ends dead children for good, then starts their successors.

    Args:
        replace: does the work.
        previous: the dead child of each rank, None for a new one; whatever it has left behind is ended, and its handle
            closed.
        on_done: called in the attempt's thread when there is an outcome.
    """

    def __init__(
        self,
        replace: Replace,
        generation: Generation,
        previous: Mapping[EngineRank, ChildHandle | None],
        on_done: Callable[[], None],
        on_progress: OnProgress,
    ) -> None:
        self.generation = generation
        self.progress: dict[EngineRank, StartupProgress] = {}
        self._replace = replace
        self._previous = dict(previous)
        self._on_done = on_done
        self._on_progress = on_progress
        self._cancel = Wakeup()
        self._lock = threading.RLock()
        self._outcome: Replacements | Exception | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"muro-restart-{min(previous)}", daemon=True)

    def begin(self) -> None:
        """Start the thread. Raises what the operating system refuses."""
        self._cancel.open()
        try:
            self._thread.start()
        except BaseException:
            self._cancel.close()
            raise

    def take(self) -> Replacements | Exception | None:
        """The outcome, if there is one by now."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return outcome

    def cancel(self) -> None:
        """Give it up; does not wait."""
        with self._lock:
            self._cancel.set()

    def abandon(self, timeout: float) -> list[ChildHandle]:
        """Cancel it, wait up to `timeout` seconds. Gives the children that came up all the same; end them."""
        self.cancel()
        if threading.current_thread() is not self._thread:  # a finalizer may run in any thread
            self._thread.join(timeout)
        with self._lock:
            self._abandoned = True
            outcome, self._outcome = self._outcome, None
        return _children(outcome)

    def _run(self) -> None:
        outcome: Replacements | Exception
        try:
            for child in filter(None, self._previous.values()):
                child.close()
            ranks = list(self._previous)
            outcome = self._replace(ranks, self.generation, on_progress=self._progressed, cancel=self._cancel)
        except Exception as error:
            outcome = error
        with self._lock:
            abandoned = self._abandoned
            self._outcome = None if abandoned else outcome
            self._cancel.close()
        if not abandoned:
            self._on_done()
        else:
            for child in _children(outcome):
                child.close()

    def _progressed(self, progress: StartupProgress) -> None:
        self.progress[progress.rank] = progress
        self._on_progress(progress)


def _children(outcome: Replacements | Exception | None) -> list[ChildHandle]:
    if outcome is None or isinstance(outcome, Exception):
        return []
    return [replacement.child for replacement in outcome.values()]
