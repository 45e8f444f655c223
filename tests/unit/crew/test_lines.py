"""Lines between servers and their parent, over real sockets: who is who, and what junk does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from muro.crew.line import Line
from muro.crew.lines import Lines
from muro.crew.words import Count, CountAll, FromServer, Joining, Membership, ToServer
from muro.ids import ClientIndex
from muro.transport.endpoint import EndpointDirectory
from muro.transport.sockets import close, connect_dealer, send_nowait
from tests.support.deadline import until, until_async


class Ends:
    """The parent's end, and as many servers' as are made."""

    def __init__(self, directory: EndpointDirectory, number: int) -> None:
        self.heard: list[tuple[int, int, FromServer]] = []
        self.lines = Lines(number, lambda index, generation, word: self.heard.append((index, generation, word)))
        self.lines.open(directory)
        self._directory = directory
        self.made: list[Line] = []

    def server(self, index: int, generation: int = 0) -> tuple[Line, list[ToServer]]:
        words: list[ToServer] = []
        where, line = self._directory.path, self.lines.address
        member = Membership(servers=2, index=ClientIndex(index), generation=generation, directory=where, line=line)
        self.made.append(Line(member, words.append).open())
        self.made[-1].say(Joining(index, generation))
        return self.made[-1], words


@asynccontextmanager
async def ends(number: int = 2) -> AsyncIterator[Ends]:
    with EndpointDirectory() as directory:
        both = Ends(directory, number)
        try:
            yield both
        finally:
            for line in (*both.made, both.lines):
                line.close()
                line.close()


def test_each_server_is_known_and_gets_its_own() -> None:
    async def main() -> None:
        async with ends() as both:
            (one, to_one), (_, to_other) = both.server(0), both.server(1)
            await until_async(lambda: len(both.heard) == 2)
            assert sorted(both.heard, key=lambda heard: heard[0]) == [(0, 0, Joining(0, 0)), (1, 0, Joining(1, 0))]
            one.say(CountAll(5))
            await until_async(lambda: both.heard[-1] == (0, 0, CountAll(5)))
            assert both.lines.say(1, Count())
            await until_async(lambda: to_other == [Count()])
            both.lines.say_to_all({0, 1}, Count())
            await until_async(lambda: len(to_other) == 2 and len(to_one) == 1)

    asyncio.run(main())


def test_a_successor_is_somebody_else_and_who_has_gone_is_told_nothing() -> None:
    async def main() -> None:
        async with ends() as both:
            assert not both.lines.say(0, Count()), "nobody has said anything yet"
            _, to_old = both.server(0)
            await until_async(lambda: both.heard)
            both.lines.forget(0)
            assert not both.lines.say(0, Count())
            _, to_new = both.server(0, generation=1)
            await until_async(lambda: both.heard[-1] == (0, 1, Joining(0, 1)))
            assert both.lines.say(0, Count())
            await until_async(lambda: to_new == [Count()])
            assert to_old == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("identity", "frames"),
    [
        (b"server-7-0", [b"\xc0"]),
        (b"server-0-x", [b"\xc0"]),
        (b"server-00-0", [b"\xc0"]),
        (b"stranger", [b"\xc0"]),
        (b"server-1-0", [b"\xc1"]),
        (b"server-1-0", [b"\xc0", b"more"]),
    ],
)
def test_junk_costs_nothing(identity: bytes, frames: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with ends() as both:
            junk = connect_dealer(both.lines.address, identity, linger_ms=0)
            try:
                send_nowait(junk, frames)
                await until_async(lambda: caplog.records)
                both.server(0)
                await until_async(lambda: both.heard == [(0, 0, Joining(0, 0))])
            finally:
                close(junk, 0)

    asyncio.run(main())


def test_a_server_hears_in_the_midst_of_something_else() -> None:
    """Without giving the loop a turn."""

    async def main() -> None:
        async with ends() as both:
            line, words = both.server(0)
            await until_async(lambda: both.heard)
            line.wait(lambda: bool(words), 0.01)
            assert words == [], "in vain"
            both.lines.say(0, Count())
            until(lambda: line.wait(lambda: bool(words), 5) or words == [Count()])
            both.lines.say(0, Count())
            await until_async(lambda: len(words) == 2)

    asyncio.run(main())
