"""Engines under supervision: one of each rank, in groups that live and die together. Only data.

An independent engine is a group of its own. Lockstep engines are one group: none can step without the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muro.config import RestartPolicy
from muro.errors import LOG_FOLLOWS, EngineDeadError
from muro.ids import EngineRank, Generation
from muro.launch.attempt import Attempt, Replacements
from muro.launch.death import Death
from muro.launch.handle import ChildHandle
from muro.launch.restart import RankState, Restarts
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
    """The engine of one rank: the child that runs or ran last."""

    def __init__(self, rank: EngineRank, child: ChildHandle, now: float) -> None:
        self.rank = rank
        self.child = child
        self.ready_since = now
        self.ended = False
        """Whether the child is no more, and was reaped."""
        self.kill_at: float | None = None
        self.unannounced = False
        """Whether its last death may still be announced."""
        self.stuck = ""
        self.stacks = ""
        """Where its threads stood, which was logged."""

    @property
    def failed(self) -> bool:
        """Whether the child has ended, or has said that it is about to."""
        return self.ended or self.child.failure() is not None

    def death(self) -> Death:
        """Why the child has ended."""
        death = self.child.death()
        return msgspec.structs.replace(death, stuck=self.stuck) if self.stuck else death

    def notice(self, error: EngineDeadError) -> str:
        """What is logged of its death. Stacks that were logged already would be the last lines of its log once more."""
        return error.message.partition(LOG_FOLLOWS)[0] if self.stacks else error.message

    def replaced_by(self, child: ChildHandle, now: float) -> None:
        """A successor is ready."""
        self.child, self.ready_since = child, now
        self.ended, self.kill_at = False, None
        self.stuck = self.stacks = ""


class Group:
    """Engines that are restarted together, and what becomes of them."""

    def __init__(
        self, ranks: Sequence[Rank], policy: RestartPolicy, now: float, generation: Generation = FIRST
    ) -> None:
        self.ranks = list(ranks)
        self.restarts = Restarts(policy, generation)
        self.attempt: Attempt | None = None
        self.died_at = now
        self.started_at = now
        self.cause = ""
        self.start_took = 1.0

    @property
    def name(self) -> str:
        """In people's words."""
        if len(self.ranks) == 1:
            return self.ranks[0].child.name
        return f"the lockstep group of {len(self.ranks)} engines"

    @property
    def running(self) -> bool:
        """Whether its engines serve, as far as was found out."""
        return self.restarts.state is RankState.RUNNING

    @property
    def leaving(self) -> bool:
        """Whether it was let go."""
        return self.restarts.state is RankState.LEAVING

    def let_go(self, kill_at: float) -> None:
        """Ask the children to end, by `kill_at`, and give up what is being started."""
        self.restarts.let_go()
        for one in self.ranks:
            one.kill_at = kill_at
            one.child.terminate()
        if self.attempt is not None:
            self.attempt.cancel()

    def born_too_late(self, outcome: Replacements | Exception, now: float) -> None:
        """Successors that nobody wants any more are killed at once."""
        if not isinstance(outcome, Exception):
            for one in self.ranks:
                one.child, one.ended, one.kill_at = outcome[one.rank].child, False, now

    @property
    def ended(self) -> bool:
        """Whether none of its children is left."""
        return all(one.ended for one in self.ranks)

    def culprit(self) -> Rank | None:
        """The one who has died, if one has; among several not one who only says that it misses another."""
        return min((one for one in self.ranks if one.failed), key=_misses_another, default=None)

    def status(self, one: Rank, now: float) -> RankStatus:
        """How one of its engines is."""
        attempt, state = self.attempt, self.restarts.state
        progress = one.child.progress()
        if attempt is not None and (seen := attempt.progress.get(one.rank)) is not None:
            progress = Progress(generation=attempt.generation, phase=seen.sight.phase, percent=seen.sight.percent)
        return RankStatus(
            state=state,
            generation=self.restarts.generation,
            pid=one.child.pid if attempt is None else None,
            progress=progress,
            uptime=max(0.0, now - one.ready_since) if state is RankState.RUNNING else None,
        )


def _misses_another(one: Rank) -> bool:
    """Whether a rank has ended because it got no word of another one of its group."""
    record = one.child.failure()
    return record is not None and record.kind == EngineDeadError.__name__
