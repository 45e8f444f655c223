"""What the parent of several servers knows of the engines, and tells. In the parent's loop.

The supervisor of the engines tells of events in its own thread; here they are taken in one after the other, so that a
server that begins gets either the state after an event, or the event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from muro.clients.aio import AsyncMPClient
from muro.clients.interface import EngineStatus
from muro.crew.words import EngineEvent, EngineWord
from muro.errors import EngineDeadError
from muro.ids import EngineRank, Generation
from muro.launch.events import EngineDied, EngineGivenUp, EngineReplaced, EngineStarted, Event
from muro.launch.rank import RankStatus


class Engines:
    """All engines of a client that has just been made.

    Args:
        client: of the process that started them.
        tell: takes what servers have to know.
    """

    def __init__(self, client: AsyncMPClient, tell: Callable[[EngineEvent], None]) -> None:
        self._supervisor = client.supervisor
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._words: dict[EngineRank, EngineWord] = {}
        self._unsubscribe = self._supervisor.subscribe(self._hear)
        for status in client.engines():
            self._words[status.rank] = _word(status)

    def words(self) -> list[EngineWord]:
        """How they are, for a server that begins."""
        return list(self._words.values())

    def statuses(self) -> dict[EngineRank, RankStatus]:
        """How their processes are."""
        found = {rank: self._supervisor.status(rank) for rank in self._words}
        return {rank: status for rank, status in found.items() if status is not None}

    def close(self) -> None:
        """Hear no more."""
        self._unsubscribe()

    def _hear(self, event: Event) -> None:
        """Any thread."""
        if isinstance(event, EngineEvent):
            with contextlib.suppress(RuntimeError):  # a closed loop: nobody is there any more
                self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: EngineEvent) -> None:
        match event:
            case EngineDied():
                self._words[event.rank] = EngineWord(event.rank, event.generation, None, event.error)
            case EngineStarted() if (known := self._words.get(event.rank)) is not None:
                error = known.error
                self._words[event.rank] = EngineWord(event.rank, known.generation, None, error, event.generation)
            case EngineReplaced():
                self._words[event.rank] = EngineWord(event.rank, event.generation, event.ready)
            case EngineGivenUp() if event.rank is not None:
                generation = Generation(event.error.generation)
                self._words[event.rank] = EngineWord(event.rank, generation, None, event.error)
        self._tell(event)


def _word(status: EngineStatus) -> EngineWord:
    generation = Generation(status.generation)
    if status.state == "serving":
        return EngineWord(status.rank, generation, status.ready)
    restarting = status.state == "restarting"
    error = EngineDeadError(status.error, rank=status.rank, generation=status.generation, restarting=restarting)
    return EngineWord(status.rank, generation, None, error)
