"""The engine of one rank under supervision: its child, its restarts, the start of its successor. Only data."""

from __future__ import annotations

import msgspec

from muro.config import RestartPolicy
from muro.ids import EngineRank, Generation
from muro.launch.attempt import Attempt
from muro.launch.restart import RankState, Restarts
from muro.launch.spawn import Child
from muro.wire.progress import Progress

FIRST = Generation(0)


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine of one rank is."""

    state: RankState
    generation: Generation
    """The latest one, whether it serves, starts or has died; so often was it restarted."""
    pid: int | None
    progress: Progress
    """Its page, or how far the start of a successor is."""
    uptime: float | None
    """Seconds since it is ready; None if it is not."""


class Rank:
    """The engine of one rank: the child that runs or ran last, and what becomes of it."""

    def __init__(
        self, rank: EngineRank, child: Child, policy: RestartPolicy, now: float, generation: Generation = FIRST
    ) -> None:
        self.rank = rank
        self.child = child
        self.restarts = Restarts(policy, generation)
        self.attempt: Attempt | None = None
        self.ready_since = now
        self.died_at = now
        self.started_at = now
        self.ended = False
        """Whether the child is no more, and was reaped."""
        self.kill_at: float | None = None
        self.unannounced = False
        """Whether its last death may still be announced."""
        self.stuck = ""
        self.cause = ""
        self.start_took = 1.0

    @property
    def running(self) -> bool:
        """Whether its engine serves, as far as was found out."""
        return self.restarts.state is RankState.RUNNING

    @property
    def leaving(self) -> bool:
        """Whether it was let go."""
        return self.restarts.state is RankState.LEAVING

    def let_go(self, kill_at: float) -> None:
        """Ask the child to end, by `kill_at`, and give up what is being started."""
        self.restarts.let_go()
        self.kill_at = kill_at
        self.child.terminate()
        if self.attempt is not None:
            self.attempt.cancel()

    def status(self, now: float) -> RankStatus:
        """How it is."""
        attempt, state = self.attempt, self.restarts.state
        progress = self.child.progress()
        if attempt is not None and attempt.progress is not None:
            sight = attempt.progress.sight
            progress = Progress(generation=attempt.generation, phase=sight.phase, percent=sight.percent)
        return RankStatus(
            state=state,
            generation=self.restarts.generation,
            pid=self.child.pid if attempt is None else None,
            progress=progress,
            uptime=max(0.0, now - self.ready_since) if state is RankState.RUNNING else None,
        )

    def born_too_late(self, child: Child, now: float) -> None:
        """A successor is ready that nobody wants any more; it is killed at once."""
        self.child, self.ended, self.kill_at = child, False, now

    def replaced_by(self, child: Child, now: float) -> None:
        """A successor is ready."""
        self.child, self.ready_since = child, now
        self.ended, self.kill_at, self.stuck = False, None, ""
        self.restarts.serves()
