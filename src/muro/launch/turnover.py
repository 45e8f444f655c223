"""Ranks that come and ranks that go while others serve. Used under the supervisor's lock, save `bury`.

Each start is an `Attempt`, in a thread of its own. A rank that was there before gets a later generation than it had, so
that nothing which is still told of the old engine can be taken for news of the new one.
Who has left and ended is buried by one thread, without the lock: what was left behind may take its time.
"""

from __future__ import annotations

from collections.abc import Callable

from muro.config import RestartPolicy
from muro.errors import StartupError, UsageError
from muro.ids import EngineRank, Generation
from muro.launch.attempt import Attempt, Replace
from muro.launch.events import EngineAdded, EngineLeft, EngineProgress, EngineUnborn, Event
from muro.launch.handle import ChildHandle
from muro.launch.rank import Group, Rank
from muro.launch.startup import StartupProgress


class Turnover:
    """Starts engines of new ranks, and buries those of old ones.

    Args:
        replace: starts one; None: it cannot be done here.
        policy: what follows a death of one that serves.
        wake: called in any thread when there is an outcome.
        publish: takes events.
    """

    def __init__(
        self,
        replace: Replace | None,
        policy: RestartPolicy,
        wake: Callable[[], None],
        publish: Callable[[Event], None],
    ) -> None:
        self._replace = replace
        self._policy = policy
        self._wake = wake
        self._publish = publish
        self._attempts: dict[EngineRank, Attempt] = {}
        self._last: dict[EngineRank, Generation] = {}
        self._unannounced = 0
        self._departed: list[tuple[Rank, Generation]] = []

    def begin(self, rank: EngineRank) -> Attempt:
        """Start the engine of a new rank; whoever cancels the attempt gives it up. Raises StartupError."""
        if self._replace is None or rank in self._attempts:
            raise UsageError(f"engine {rank} cannot be started here, or its last start is not given up yet; try again")
        generation = Generation(self._last[rank] + 1 if rank in self._last else 0)

        def progressed(progress: StartupProgress) -> None:
            self._publish(EngineProgress(rank, generation, progress.sight.phase, progress.sight.percent))

        attempt = Attempt(self._replace, generation, {rank: None}, self._wake, progressed)
        try:
            attempt.begin()
        except (OSError, RuntimeError) as error:
            raise StartupError(f"no thread could be made to start engine {rank}: {error}", rank=rank) from error
        self._last[rank] = generation
        self._attempts[rank] = attempt
        return attempt

    def settle(self, now: float) -> list[Group]:
        """Those that serve since; they are told, and so are those that did not come up."""
        born = []
        for rank, attempt in list(self._attempts.items()):
            if (outcome := attempt.take()) is None:
                continue
            del self._attempts[rank]
            if isinstance(outcome, Exception):
                self._publish(EngineUnborn(rank, attempt.generation, _as_startup_error(outcome, rank)))
                continue
            child, ready = outcome[rank].child, outcome[rank].ready
            born.append(Group([Rank(rank, child, now)], self._policy, now, attempt.generation))
            self._publish(EngineAdded(rank, attempt.generation, ready, child.pid))
        return born

    def departs(self, group: Group) -> None:
        """The last child of a rank that was let go has ended."""
        self._unannounced += any(one.child.failure() is not None for one in group.ranks)
        self._departed += [(one, group.restarts.generation) for one in group.ranks]
        self._wake()

    def announced(self) -> bool:
        """An engine has announced its death; whether it may be one that failed while it left."""
        if not self._unannounced:
            return False
        self._unannounced -= 1
        return True

    @property
    def departed(self) -> list[ChildHandle]:
        """Who has ended, and is not buried yet."""
        return [one.child for one, _ in self._departed]

    def bury(self) -> None:
        """End what those who have left may have left behind, and tell; for one thread."""
        while self._departed:
            one, generation = self._departed[0]
            one.child.close()
            self._last[one.rank] = generation
            del self._departed[0]
            self._publish(EngineLeft(one.rank, generation))

    def take_all(self) -> list[Attempt]:
        """Those that are being started, for whoever ends them."""
        attempts = list(self._attempts.values())
        self._attempts.clear()
        return attempts


def _as_startup_error(cause: Exception, rank: EngineRank) -> StartupError:
    if isinstance(cause, StartupError):
        return cause
    error = StartupError(f"engine {rank} could not be started: {type(cause).__name__}: {cause}", rank=rank)
    error.__cause__ = cause
    return error
