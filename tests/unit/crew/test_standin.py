"""What stands in for the supervisor, with the doors of a server and engines that dial them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from muro.clients.doors import Shared
from muro.crew.doors import ServerDoors
from muro.crew.line import Line
from muro.crew.lines import Lines
from muro.crew.standin import StandIn
from muro.crew.words import Joining, Membership, Standing
from muro.errors import EngineDeadError
from muro.ids import ClientIndex, EngineRank, Generation
from muro.launch.events import EngineDied, EngineReplaced, EngineStarted, Event
from muro.launch.rank import RankStatus
from muro.launch.restart import RankState
from muro.transport.endpoint import EndpointDirectory
from muro.transport.sockets import Socket, close, connect_dealer, receive_nowait, send_nowait
from muro.wire.frames import RequestType, identity_of
from muro.wire.progress import Progress
from tests.support.deadline import until_async
from tests.unit.crew.test_words import READY

RANK = EngineRank(1)


class Scene:
    """Server 0 of one, its parent, and engines."""

    def __init__(self, directory: EndpointDirectory) -> None:
        self.shared = Shared(directory.path, 1)
        self.lines = Lines(1, lambda index, generation, word: None).open(directory)
        member = Membership(
            servers=2, index=ClientIndex(0), generation=0, directory=directory.path, line=self.lines.address
        )
        self.doors = ServerDoors(member, 1 << 20).open()
        self.line = Line(member, self._hear).open()
        self.standin = StandIn(self.doors, self.line)
        self.told: list[Event] = []
        self.engines: list[Socket] = []

    def engine(self, generation: int) -> Socket:
        """Dial the door that INIT would name."""
        address = self.shared.addresses(RANK if generation else None, generation).inputs[0]
        self.engines.append(connect_dealer(address, identity_of(RANK), linger_ms=0))
        return self.engines[-1]

    def subscribe(self) -> Callable[[], None]:
        return self.standin.subscribe(self.told.append)

    def close(self) -> None:
        for socket in self.engines:
            close(socket, 0)
        self.line.close()
        self.lines.close()
        self.doors.close()
        self.doors.close()

    def _hear(self, word: Any) -> None:
        self.standin.hear(word)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    with EndpointDirectory() as directory:
        made = Scene(directory)
        try:
            yield made
        finally:
            made.close()


def run(main: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        async with scene() as made:
            await main(made)

    asyncio.run(inside())


def died(generation: int) -> EngineDied:
    error = EngineDeadError("gone", rank=RANK, generation=generation, restarting=True)
    return EngineDied(RANK, Generation(generation), error, True)


def replaced(generation: int) -> EngineReplaced:
    return EngineReplaced(RANK, Generation(generation), READY, 7, 0.1)


def begun(generation: int) -> EngineStarted:
    return EngineStarted(RANK, Generation(generation), 1, 5, "")


def test_a_successor_is_told_of_when_it_can_be_reached() -> None:
    async def main(scene: Scene) -> None:
        scene.subscribe()
        for event in (death := died(0), start := begun(1), arrival := replaced(1)):
            scene.standin.hear(event)
        assert scene.told == [death, start] and scene.standin.has_died(RANK)
        assert scene.doors.adopt(RANK, Generation(2)) is None
        engine = scene.engine(1)
        await until_async(lambda: scene.told == [death, start, arrival])
        assert not scene.standin.has_died(RANK)
        door = scene.doors.adopt(RANK, Generation(1))
        assert door is not None and send_nowait(door, [identity_of(RANK), b"word"])
        heard: list[Any] = []

        def read() -> bool:
            while (frames := receive_nowait(engine)) is not None:
                heard.append(frames)
            return heard[-1:] == [[b"word"]]

        with suppress(AssertionError):
            await until_async(read)
        assert [bytes(frames[0]) for frames in heard] == [RequestType.ABORT, b"word"], "tried out, then used"
        close(door, 0)

    run(main)


def test_one_that_dies_before_it_was_reached_was_never_there() -> None:
    async def main(scene: Scene) -> None:
        scene.subscribe()
        events = [died(0), begun(1), replaced(1), died(1), begun(2)]
        for event in events:
            scene.standin.hear(event)
        scene.engine(2)
        assert not scene.doors.reached(RANK, Generation(1)), "its door is shut"
        scene.standin.hear(arrival := replaced(2))
        await until_async(lambda: scene.told[-1] is arrival)
        assert scene.told == [events[0], events[1], events[3], events[4], arrival]

    run(main)


def test_what_happens_before_anybody_asks_is_not_lost() -> None:
    async def main(scene: Scene) -> None:
        scene.standin.hear(death := died(0))
        unsubscribe = scene.subscribe()
        assert scene.told == [death]
        unsubscribe()
        scene.subscribe()
        scene.standin.hear(begun(1))
        assert len(scene.told) == 2
        scene.standin.stop(1.0)
        scene.standin.hear(died(1))
        assert len(scene.told) == 2, "after the stop nothing is told"

    run(main)


def test_who_meets_an_engine_that_does_not_answer_hears_of_its_death() -> None:
    async def main(scene: Scene) -> None:
        scene.subscribe()
        scene.standin.wait_end(RANK, 0.01)
        assert scene.told == []
        scene.line.say(Joining(0, 0))
        await until_async(lambda: scene.lines.say(0, death))
        scene.standin.wait_end(RANK, 10)
        assert [type(event) for event in scene.told] == [EngineDied]
        scene.standin.wait_end(RANK, 1e6)

    death = died(0)
    run(main)


def test_the_uptime_goes_on_between_two_words_of_the_parent() -> None:
    async def main(scene: Scene) -> None:
        assert scene.standin.status(RANK) is None
        loop = asyncio.get_running_loop()
        status = RankStatus(state=RankState.RUNNING, generation=Generation(0), pid=1, progress=Progress(), uptime=5.0)
        scene.standin.stand(Standing({RANK: status}, [], loop.time() - 60))
        found = scene.standin.status(RANK)
        assert found is not None and found.uptime is not None and 65 <= found.uptime < 70

    run(main)
