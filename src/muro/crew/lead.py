"""The parent of several servers: it starts engines and servers, watches both, and serves nobody. One event loop.

It is a client of the engines itself, the last one, and sends no requests: so engines are started, judged and followed
by successors as for any other client, and what their supervisor tells is passed on to the servers. Rules:

- Engines and servers are started at once; a server learns of the engines when all of them serve (`Begin`), and then of
  each event, in order. One that comes later gets the present state first.
- A stop is asked of the servers, which drain; a second one ends their patience. Engines end after the last server.
- When no engine is left, and none is started again, the servers tell their callers so and end by themselves.
- When this process ends, however it does, engines and servers end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from muro.child.stop_requests import StopRequests
from muro.clients.aio import AsyncMPClient
from muro.clients.connect import OnProgress, connect_async
from muro.clients.doors import Shared
from muro.config import ConnectConfig, RestartPolicy
from muro.crew.counting import Counting
from muro.crew.ending import ASKED, exit_code
from muro.crew.engines import Engines
from muro.crew.lines import Lines
from muro.crew.servers import Servers
from muro.crew.words import Begin, CountAll, Counted, EngineEvent, FromServer, Joining, Membership, Serving, Standing
from muro.errors import StartupError
from muro.ids import ClientIndex
from muro.launch.spawn import Child
from muro.transport.endpoint import EndpointDirectory
from muro.wire.failure import ExitCode

log = logging.getLogger(__name__)

MAX_SERVERS = 64
_TICK, _IDLE_TICK = 0.2, 1.0
"""Seconds between two looks at how engines are; the second if nothing had moved at the last one. It is memory, and is
passed on only if it has changed; events of engines and servers are heard at once."""
_LAST_WORDS = 10.0
"""Seconds that servers get to end beside their patience with callers."""
_SIGNAL_GRACE = 0.5
"""Seconds by which a signal to us may be later than the same one to a child."""


class CrewConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many servers, and how they end. Times in seconds."""

    servers: int
    restart: RestartPolicy = RestartPolicy(policy="always")
    """Back-off and budget of those that die."""
    shutdown_timeout: float = 0.0
    """How long servers wait for their callers when they are asked to stop."""
    death_notice: float = 2.0
    """How long servers go on when no engine is left."""


StartServer = Callable[[Membership], Child]


async def lead(
    config: CrewConfig,
    connect: ConnectConfig,
    start: StartServer,
    stops: StopRequests,
    *,
    on_progress: OnProgress | None = None,
    on_serving: Callable[[Serving], None] = lambda serving: None,
    on_stop: Callable[[], None] = lambda: None,
) -> ExitCode:
    """Start engines and servers, and stay until somebody asks to stop, or there is nothing left to lead.

    Args:
        config: the servers.
        connect: the engines; all are started here.
        start: starts the process of one server, which must call `member.Member.join`.
        stops: to ask for a stop.
        on_progress: told how the engines' start goes; called in another thread.
        on_serving: called when all servers serve, with the word of the last one.
        on_stop: called when that is over, before the servers are asked to stop.

    Raises:
        ConfigError: a setting is wrong.
        StartupError: an engine or a server did not come up.
    """
    with EndpointDirectory(connect.socket_dir) as directory:
        crew = _Crew(config, directory, start, stops)
        try:
            client = await crew.begin(connect, on_progress)
            if client is None:
                return ExitCode.STOPPED
            try:
                if crew.serving is not None:
                    on_serving(crew.serving)
                return await crew.lead(client, on_stop)
            finally:
                await client.aclose()
        finally:
            await crew.close()


class _Crew:
    """One crew, from its first process to its last."""

    def __init__(
        self, config: CrewConfig, directory: EndpointDirectory, start: StartServer, stops: StopRequests
    ) -> None:
        self._config = config
        self._directory = directory
        self._start = start
        self._stops = stops
        self._lines = Lines(config.servers, self._hear)
        self._servers = Servers(config.servers, self._start_server, config.restart, self._server_ended)
        self._counting = Counting(self._lines.say)
        self._engines: Engines | None = None
        self._joined: set[int] = set()
        """Servers that wait for the engines, or have heard of them."""
        self._standing: Standing | None = None
        self._news = asyncio.Event()
        self.serving: Serving | None = None
        """The last word of a server that began to serve."""

    async def begin(self, connect: ConnectConfig, on_progress: OnProgress | None) -> AsyncMPClient | None:
        """Start all, and return when all serve: the client; None if a stop was asked for meanwhile."""
        self._lines.open(self._directory)
        self._servers.open()
        shared = Shared(self._directory.path, self._config.servers)
        starting = asyncio.ensure_future(connect_async(connect, on_progress=on_progress, shared=shared))
        served = asyncio.ensure_future(self._servers.all_served.wait())
        all_serve = False
        try:
            if await self._until(starting):
                self._engines = Engines(starting.result(), self._tell)
                for index in self._joined:
                    self._begin(index)
                all_serve = await self._until(served)
            return starting.result() if all_serve else None
        finally:
            served.cancel()
            if not all_serve:
                await _discard(starting)

    async def lead(self, client: AsyncMPClient, on_stop: Callable[[], None]) -> ExitCode:
        """Pass on what happens, until it is over; the servers have ended when this returns."""
        asked: asyncio.Future[Any] = asyncio.ensure_future(self._stops.asked())
        over: asyncio.Future[Any] = self._servers.over
        try:
            for ending in (asked, over):
                ending.add_done_callback(lambda ended: self._news.set())
            while not asked.done() and not over.done() and exit_code(client) is ExitCode.STOPPED:
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK if self._stand() else _IDLE_TICK):
                        await self._news.wait()
            to_be_asked = asked.done() or over.done()
        finally:
            asked.cancel()
        on_stop()
        if to_be_asked:
            self._servers.terminate()
            await self._ended(self._config.shutdown_timeout + _LAST_WORDS)
        else:
            log.error("no engine is left, and none is started again; the servers end")
            self._servers.let_end()
            await self._ended(self._config.death_notice + _LAST_WORDS)
        if over.done():
            log.error("%s", over.result())
            return ExitCode.CRASH_LOOP
        return exit_code(client, asked=self._stops.count > 0)

    async def close(self) -> None:
        """End the servers that still run, and hear nobody any more."""
        if self._engines is not None:
            self._engines.close()
        await self._servers.stop(0.0)
        self._counting.close()
        self._lines.close()

    async def _until(self, done: asyncio.Future[Any]) -> bool:
        """Wait for a step of the start; false if a stop was asked for. Raises what has failed instead."""
        asked, over = asyncio.ensure_future(self._stops.asked()), self._servers.over
        try:
            await asyncio.wait({done, asked, over}, return_when=asyncio.FIRST_COMPLETED)
            failure = over.result() if over.done() else done.exception() if done.done() else None
            if isinstance(failure, StartupError) and failure.exit_status in ASKED:
                # Somebody may have asked the whole tree to stop at once, and a child was faster.
                await asyncio.wait({asked}, timeout=_SIGNAL_GRACE)
            if asked.done():
                return False
            if failure is not None:
                raise failure
            return True
        finally:
            asked.cancel()

    async def _ended(self, patience: float) -> None:
        """Wait until the servers have ended; another request to stop ends their patience with callers."""
        times = self._stops.count + 1
        impatient = asyncio.ensure_future(self._stops.asked(times))
        ended = asyncio.ensure_future(self._servers.all_ended.wait())
        try:
            await asyncio.wait({impatient, ended}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and impatient.done():
                self._servers.terminate()
                await asyncio.wait({ended}, timeout=_LAST_WORDS)
        finally:
            impatient.cancel()
            ended.cancel()

    def _start_server(self, index: int, generation: int) -> Child:
        where = self._directory.path
        membership = Membership(
            servers=self._config.servers,
            index=ClientIndex(index),
            generation=generation,
            directory=where,
            line=self._lines.address,
        )
        return self._start(membership)

    def _server_ended(self, index: int) -> None:
        self._news.set()
        self._joined.discard(index)
        self._lines.forget(index)
        self._counting.ended(index)

    def _hear(self, index: int, generation: int, word: FromServer) -> None:
        match word:
            case Joining():
                self._joined.add(index)
                if self._engines is not None:
                    self._begin(index)
            case Serving():
                self.serving = word
                self._servers.serves(index, generation)
                self._news.set()
            case Counted():
                self._counting.counted(index, word.numbers)
            case CountAll():
                self._counting.count_all(index, word.call, self._joined)

    def _begin(self, index: int) -> None:
        """Tell a server how the engines are; from now on it gets each event."""
        if self._engines is not None:
            self._lines.say(index, Begin(self._engines.words()))
            self._lines.say(index, self._present(self._engines))

    def _tell(self, event: EngineEvent) -> None:
        self._lines.say_to_all(self._joined, event)
        self._news.set()

    def _stand(self) -> bool:
        """Tell all servers how everybody is, if that has changed; whether it has."""
        if self._engines is None:
            return False
        present = self._present(self._engines)
        if self._standing is not None and not _moved(present, self._standing):
            return False
        self._standing = present
        self._lines.say_to_all(self._joined, present)
        return True

    def _present(self, engines: Engines) -> Standing:
        return Standing(engines.statuses(), self._servers.statuses(), time.monotonic())


async def _discard(starting: asyncio.Future[AsyncMPClient]) -> None:
    """Give a start up, however far it is."""
    starting.cancel()
    await asyncio.wait({starting})
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().aclose()


def _moved(one: Standing, other: Standing) -> bool:
    """Whether anything but the time differs."""
    return one.servers != other.servers or _without_times(one) != _without_times(other)


def _without_times(standing: Standing) -> dict[int, object]:
    return {rank: msgspec.structs.replace(status, uptime=None) for rank, status in standing.engines.items()}
