"""What stands in a server where the process that started the engines has their supervisor.

It tells the client what the parent says of the engines (`launch.events`), and remembers how they are. Invariants:

- Everything happens in the thread of the server's loop.
- A successor is told of once it has dialled our own door: from then on it can be sent to. If it dies before, only its
  death is told.
- Nothing is lost between the parent's first word and the client's first question: events wait for the first listener.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from muro.clients.parts import Start
from muro.crew.doors import ServerDoors
from muro.crew.line import Line
from muro.crew.words import EngineEvent, Standing
from muro.errors import EngineDeadError, UsageError
from muro.ids import EngineRank
from muro.launch.events import EngineDied, EngineReplaced, EngineStarted, Event
from muro.launch.rank import RankStatus

log = logging.getLogger(__name__)

_TRY_AGAIN = 0.01
"""Seconds between two looks whether a successor has dialled our door."""


class StandIn:
    """Fulfils `clients.parts.Watcher`.

    Args:
        doors: of this server; open.
        line: to the parent; open.
    """

    def __init__(self, doors: ServerDoors, line: Line) -> None:
        self._doors = doors
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[Event], None]] = []
        self._early: list[Event] = []
        self._arriving: dict[EngineRank, EngineReplaced] = {}
        self._dead: set[EngineRank] = set()
        self._standing = Standing({}, [], 0.0)
        self._stopped = False

    def open(self) -> StandIn:
        return self

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        early, self._early = self._early, []
        for event in early:
            self._tell(event)
        return lambda: self._listeners.remove(listener)

    def hear(self, event: EngineEvent) -> None:
        """The parent has told of something."""
        if self._stopped:
            return
        if isinstance(event, EngineStarted):
            self._doors.expect(event.rank, event.generation)
        elif isinstance(event, EngineReplaced):
            self._arriving[event.rank] = event
            self._await(event)
            return
        elif isinstance(event, EngineDied):
            self._arriving.pop(event.rank, None)
            self._dead.add(event.rank)
        self._tell(event)

    def stand(self, standing: Standing) -> None:
        """The parent says how all are."""
        self._standing = standing

    @property
    def standing(self) -> Standing:
        """The last word of the parent."""
        return self._standing

    def look(self) -> None:
        """Nothing: what the parent knows comes by itself."""

    def notice(self) -> None:
        """Nothing: whoever announces its death tells the parent, too."""

    def wait_end(self, rank: EngineRank, timeout: float) -> None:
        if rank not in self._dead and not self._stopped:
            self._line.wait(lambda: rank in self._dead, timeout)

    def status(self, rank: EngineRank) -> RankStatus | None:
        status = self._standing.engines.get(rank)
        if status is None or status.uptime is None:
            return status
        return msgspec.structs.replace(status, uptime=status.uptime + time.monotonic() - self._standing.at)

    def has_died(self, rank: EngineRank) -> bool:
        """Whether the last that was heard of an engine was its death."""
        return rank in self._dead

    def lost(self, rank: EngineRank, error: EngineDeadError) -> None:
        log.error("engine %d is not watched from here: %s", rank, error.message)

    def grow(self, rank: EngineRank) -> Start:
        raise UsageError("engines are started by the parent of the servers")

    def let_go(self, rank: EngineRank, timeout: float) -> None:
        raise UsageError("engines are ended by the parent of the servers")

    def stop(self, timeout: float) -> None:
        """Tell no more. The engines are the parent's to end."""
        self._stopped = True

    def _await(self, event: EngineReplaced) -> None:
        """Tell of a successor when it can be reached, unless it has died by then."""
        if self._stopped or self._arriving.get(event.rank) is not event:
            return
        if not self._doors.reached(event.rank, event.generation):
            self._loop.call_later(_TRY_AGAIN, self._await, event)
            return
        del self._arriving[event.rank]
        self._dead.discard(event.rank)
        self._tell(event)

    def _tell(self, event: Event) -> None:
        if not self._listeners:
            self._early.append(event)
        for listener in self._listeners:
            listener(event)
