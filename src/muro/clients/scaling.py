"""From the present number of engines to another one, while they serve. Pure: time is an argument.

New engines are started beside those that serve, each as a successor would be. One that is to leave gets no more
requests. When it has none any more, or its time is up, it is ended; what it had not finished ends with an error, and
goes on elsewhere if requests are replayed. The highest ranks leave first, before them those that do not serve; if one
that was to stay dies for good meanwhile, one that is about to leave stays in its place.
Whoever waits for the change calls `advance`, and `end` in any case: what has not happened until then will not happen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from muro.clients.arguments import check_drain_timeout
from muro.clients.engine import EngineState, KnownEngine
from muro.clients.parts import Start
from muro.clients.session import Message, Session
from muro.errors import EngineDeadError, InvalidRequestError, StartupError, UsageError
from muro.ids import EngineRank, Generation

MAX_ENGINES: Final = 256
"""Engines that one front-end starts when it is asked for them while it serves."""
DRAIN_TIMEOUT: Final = 120.0
"""Seconds that an engine which is to leave gets for the requests that it has."""
_LONGEST_WAIT: Final = 86_400.0
"""Seconds after which `advance` is called anyway; clocks of operating systems do not wait for ever."""


class Way(Protocol):
    """The way to the engines; see `link.Link`."""

    def send(self, message: Message) -> bool: ...

    def started_here(self) -> Iterable[EngineRank]:
        """The ranks that can be ended from here. Raises UsageError if their number cannot change."""
        ...

    def grow(self, rank: EngineRank) -> Start:
        """Start an engine of a new rank. Raises StartupError."""
        ...

    def let_go(self, rank: EngineRank) -> None:
        """End an engine for good."""
        ...


class Plan(msgspec.Struct, frozen=True):
    """Who comes and who goes."""

    joining: list[EngineRank] = []
    leaving: list[EngineRank] = []


def plan_scaling(engines: Mapping[EngineRank, KnownEngine], here: Iterable[EngineRank], target: Any) -> Plan:
    """What makes `target` engines of those that are there; those not `here` stay.

    Raises InvalidRequestError if there cannot be so many.
    """
    if type(target) is not int or not 1 <= target <= MAX_ENGINES:
        what = f"engines is {target!r}; it must be a number from 1 to {MAX_ENGINES}"
        raise InvalidRequestError(what, param="engines")
    left = [rank for rank, engine in engines.items() if engine.state is EngineState.LEFT]
    ours = sorted(rank for rank in here if rank in engines and rank not in left)
    gone = [rank for rank in ours if not engines[rank].serving and not engines[rank].restarting]
    wanted = target - sum(rank not in ours and rank not in left for rank in engines)
    ours = sorted((rank for rank in ours if rank not in gone), key=lambda rank: (not engines[rank].serving, rank))
    if wanted < 0:
        what = f"engines is {target}, but {target - wanted} were started elsewhere; those are stopped where they run"
        raise InvalidRequestError(what, param="engines")
    free = (EngineRank(rank) for rank in range(len(engines) + MAX_ENGINES) if EngineRank(rank) not in engines)
    joining = [rank for rank, _ in zip(free, range(wanted - len(ours)), strict=False)]
    return Plan(joining, [*gone, *reversed(ours[wanted:])])


class Scaling:
    """One change under way.

    Args:
        session: of the client; at most one change at a time.
        way: to its engines.
        target: how many there shall be.
        drain_timeout: seconds; None: as long as it takes.
        now: seconds, of any clock.

    Raises UsageError for a drain timeout that is none.
    """

    def __init__(self, session: Session, way: Way, target: int, drain_timeout: float | None, now: float) -> None:
        check_drain_timeout(drain_timeout)
        self._session = session
        self._way = way
        self._target = target
        self._drain_timeout = math.inf if drain_timeout is None else drain_timeout
        self._deadline = now + self._drain_timeout
        self._joining: dict[EngineRank, Start] = {}
        self._draining: list[EngineRank] = []
        self._ending: list[EngineRank] = []
        self._failures: dict[EngineRank, StartupError] = {}

    def begin(self, wake: Callable[[], object]) -> None:
        """Start and stop what must be; `wake` is called when `advance` may have something to do.

        Raises InvalidRequestError, UsageError, StartupError, and what has ended the session; nothing has changed then.
        """
        session = self._session
        session.check()
        if session.scaling is not None:
            raise UsageError("the number of engines is being changed already; wait until that is done")
        plan = plan_scaling(session.engines, self._way.started_here(), self._target)
        session.scaling, session.on_leaving_less = self, wake
        try:
            for rank in plan.joining:
                self._joining[rank] = self._way.grow(rank)
        except BaseException:
            self.end()
            raise
        for rank in plan.leaving:
            session.fleet.leave(rank)
            self._draining.append(rank)

    def advance(self, now: float) -> bool:
        """Do what is due; whether all has happened. Raises what has ended the session."""
        session = self._session
        session.check()
        self._keep_enough()
        for rank in list(self._draining):
            if session.fleet.in_flight(rank) and now < self._deadline:
                continue
            self._draining.remove(rank)
            self._ending.append(rank)
            self._let_go(rank)
        engines = session.engines
        self._joining = {rank: start for rank, start in self._joining.items() if rank not in engines}
        self._ending = [rank for rank in self._ending if rank in engines]
        return not (self._joining or self._draining or self._ending)

    def left(self, now: float) -> float | None:
        """Seconds until `advance` has something to do although nothing happens; None: never."""
        return min(max(0.0, self._deadline - now), _LONGEST_WAIT) if self._draining else None

    def unborn(self, rank: EngineRank, generation: Generation, error: StartupError) -> None:
        """A new engine did not come up: ours, or one of a change before this that was given up."""
        if rank in self._joining and self._joining[rank].generation == generation:
            del self._joining[rank]
            self._failures[rank] = error

    def end(self) -> None:
        """No more of it: who is starting is given up, and who was not let go yet stays."""
        for start in self._joining.values():
            start.cancel()
        for rank in self._draining:
            self._session.fleet.stay(rank)
        self._session.scaling, self._session.on_leaving_less = None, lambda: None

    def check(self) -> None:
        """Raises StartupError if new engines did not come up."""
        if self._failures:
            rank, error = next(iter(self._failures.items()))
            what = (
                f"{len(self._failures)} new engines did not come up, the others serve; engine {rank}: {error.message}"
            )
            raise StartupError(what, rank=rank, phase=error.phase, exit_status=error.exit_status) from error

    def _keep_enough(self) -> None:
        """Who was to leave stays if too few of the others are left."""
        engines = self._session.engines
        staying = sum(not one.leaving and (one.serving or one.restarting) for one in engines.values())
        for rank in sorted(rank for rank in self._draining if engines[rank].alive)[: max(0, self._target - staying)]:
            self._draining.remove(rank)
            self._session.fleet.stay(rank)

    def _let_go(self, rank: EngineRank) -> None:
        error = EngineDeadError(
            f"engine {rank} was let go, and this had not ended after {self._drain_timeout:g} s (drain_timeout)",
            rank=rank,
            generation=self._session.engines[rank].generation,
            phase="leaving",
        )
        for message in self._session.let_go(rank, error):
            self._way.send(message)
        self._way.let_go(rank)
