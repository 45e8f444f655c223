"""What the parent of several servers knows of engines, event by event."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from muro.clients.interface import EngineStatus
from muro.crew.engines import Engines
from muro.crew.words import EngineEvent, EngineWord
from muro.errors import EngineDeadError
from muro.ids import EngineRank, Generation
from muro.launch.events import (
    EngineDied,
    EngineGivenUp,
    EngineProgress,
    EngineReplaced,
    EngineStalled,
    EngineStarted,
    Event,
)
from muro.launch.rank import RankStatus
from muro.launch.restart import RankState
from muro.wire.progress import Progress
from tests.support.deadline import until_async
from tests.unit.crew.test_words import READY

ZERO, ONE = EngineRank(0), EngineRank(1)
GONE = EngineDeadError("gone", rank=1, generation=0, restarting=True)
STATUS = RankStatus(state=RankState.RUNNING, generation=Generation(0), pid=1, progress=Progress(), uptime=1.0)


class Client:
    """Two engines, one of which has died already; and their supervisor."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Event], None]] = []

    @property
    def supervisor(self) -> Client:
        return self

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def status(self, rank: EngineRank) -> RankStatus | None:
        return STATUS if rank == ZERO else None

    def engines(self) -> list[EngineStatus]:
        return [
            EngineStatus(rank=ZERO, state="serving", ready=READY),
            EngineStatus(rank=ONE, state="restarting", generation=Generation(2), error="gone"),
        ]

    def happens(self, *events: Event) -> None:
        """In a thread of its own, as a supervisor's."""
        thread = threading.Thread(target=lambda: [listener(e) for e in events for listener in self.listeners])
        thread.start()
        thread.join()


def test_a_server_gets_either_the_state_after_an_event_or_the_event() -> None:
    async def main() -> None:
        client, told = Client(), list[EngineEvent]()
        engines = Engines(client, told.append)  # type: ignore[arg-type]
        zero, one = engines.words()
        assert zero == EngineWord(ZERO, Generation(0), READY)
        assert (one.ready, one.generation, one.error and one.error.restarting) == (None, 2, True)
        assert engines.statuses() == {ZERO: STATUS}
        died = EngineDied(ZERO, Generation(0), GONE, True)
        begun = EngineStarted(ZERO, Generation(1), 1, 5, "")
        arrived = EngineReplaced(ZERO, Generation(1), READY, 7, 0.1)
        for event, word in (
            (died, EngineWord(ZERO, Generation(0), None, GONE)),
            (begun, EngineWord(ZERO, Generation(0), None, GONE, Generation(1))),
            (arrived, EngineWord(ZERO, Generation(1), READY)),
            (EngineGivenUp(ZERO, GONE), EngineWord(ZERO, Generation(0), None, GONE)),
        ):
            client.happens(event)
            assert event not in told, "in the loop, one after the other"
            await until_async(lambda event=event: told[-1:] == [event])
            assert engines.words()[0] == word
        client.happens(EngineProgress(ZERO, Generation(1), "loading", 1.0), EngineStalled(ZERO, Generation(1), ""))
        client.happens(EngineGivenUp(None, GONE))
        await until_async(lambda: len(told) == 5)
        assert told[-1] == EngineGivenUp(None, GONE), "the others concern no server"
        engines.close()
        assert client.listeners == []

    asyncio.run(main())


def test_what_happens_after_the_loop_is_closed_is_nobodys() -> None:
    client = Client()

    async def main() -> None:
        Engines(client, lambda event: None)  # type: ignore[arg-type]

    asyncio.run(main())
    client.happens(EngineGivenUp(None, GONE))
