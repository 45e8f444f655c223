"""How a server comes to its client, and what it knows of the other servers. In the loop that serves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

from muro.clients.aio import AsyncMPClient
from muro.clients.connect import OnProgress, balancer_for, layout_of, session_over
from muro.clients.coordination import Coordination
from muro.clients.engine import KnownEngine
from muro.clients.link import Link
from muro.clients.session import Session
from muro.clients.traffic import Traffic
from muro.config import ConnectConfig
from muro.crew.doors import ServerDoors
from muro.crew.interface import ServerStatus
from muro.crew.line import Line
from muro.crew.standin import StandIn
from muro.crew.words import (
    Begin,
    Count,
    CountAll,
    Counted,
    EngineWord,
    Joining,
    Membership,
    Serving,
    Standing,
    ToServer,
    Total,
)
from muro.errors import EngineDeadError, StartupError
from muro.ids import EngineRank
from muro.launch.events import EngineReplaced
from muro.observe.metrics import Numbers

_DIAL_PATIENCE = 30.0
"""Seconds that engines which serve get to dial a server that has just opened its doors."""
_TRY_AGAIN = 0.01
COUNT_PATIENCE = 2.0
"""Seconds that the numbers of the others may take; then they are given without them."""


class Member:
    """One server among several; fulfils `interface.Crew`. Made in the loop that serves.

    Args:
        membership: which one, and where the others are.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._begun: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[Numbers]] = {}
        self._calls = itertools.count()
        self._count: Callable[[], Numbers] = Numbers
        self._line = Line(membership, self._hear)
        self._standin: StandIn | None = None

    async def join(
        self, config: ConnectConfig | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncMPClient:
        """Open the doors, wait for the parent's engines, and return a client of them; as `connect.connect_async`.

        Raises ConfigError, StartupError. Nobody is told of progress: the parent knows more.
        """
        config = config or ConnectConfig()
        with contextlib.ExitStack() as undo:
            limit = config.engine.limits.max_message_bytes
            doors = ServerDoors(self._membership, limit, lockstep=config.lockstep).open()
            undo.callback(doors.close)
            self._standin = standin = StandIn(doors, self._line.open())
            self._line.say(Joining(self._membership.index, self._membership.generation))
            words = (await self._begun).engines
            engines = {word.rank: await _known(word, doors, standin) for word in words}
            layout = layout_of(engine.ready for engine in engines.values() if engine.ready is not None)
            timeout = config.close_timeout
            coordination = _coordination(engines.values())
            undo.pop_all()
        link = Link(doors, standin, doors, Traffic(), layout, timeout, coordination=coordination)
        link.fixed = "several servers have them, and are not told"
        for word in words:
            if word.generation and word.ready is not None:
                link.adopt(EngineReplaced(word.rank, word.generation, word.ready, 0, 0.0))
        session = self._session(engines, config)
        link.listen_for(session, None)
        return AsyncMPClient(session, link).start()

    def serves(self, names: Sequence[str], *, chat: bool, count: Callable[[], Numbers]) -> None:
        """From now on HTTP is answered; `count` gives our own numbers."""
        self._count = count
        self._line.say(Serving(list(names), chat))

    async def add_up(self, own: Numbers) -> Numbers:
        call = next(self._calls)
        total: asyncio.Future[Numbers] = asyncio.get_running_loop().create_future()
        self._waiting[call] = total
        self._line.say(CountAll(call))
        try:
            async with asyncio.timeout(COUNT_PATIENCE):
                return await total
        except TimeoutError:
            return own
        finally:
            del self._waiting[call]

    def servers(self) -> Sequence[ServerStatus]:
        return () if self._standin is None else self._standin.standing.servers

    def close(self) -> None:
        """Hang up. The client must be closed before."""
        self._line.close()

    def _session(self, engines: dict[EngineRank, KnownEngine], config: ConnectConfig) -> Session:
        serving = {rank: engine.ready for rank, engine in engines.items() if engine.ready is not None}
        ours = self._membership
        balancer = balancer_for(serving.values(), serving, config, clients=ours.servers, index=ours.index)
        return session_over(engines, balancer, config, ours.index)

    def _hear(self, word: ToServer) -> None:
        match word:
            case Begin():
                if not self._begun.done():
                    self._begun.set_result(word)
            case Standing():
                if self._standin is not None:
                    self._standin.stand(word)
            case Count():
                self._line.say(Counted(self._count()))
            case Total():
                if (waiting := self._waiting.get(word.call)) is not None and not waiting.done():
                    waiting.set_result(word.numbers)
            case _:
                if self._standin is not None and self._begun.done():
                    self._standin.hear(word)


async def _known(word: EngineWord, doors: ServerDoors, standin: StandIn) -> KnownEngine:
    """An engine as the parent has told of it, once it can be reached. Raises StartupError if it cannot."""
    engine = KnownEngine(word.rank, word.generation)
    doors.expect(word.rank, word.generation)
    if word.ready is None:
        engine.died(word.generation, word.error or EngineDeadError(f"engine {word.rank} has died", rank=word.rank))
        if word.joining is not None:
            doors.expect(word.rank, word.joining)
        return engine
    deadline = time.monotonic() + _DIAL_PATIENCE
    while not doors.reached(word.rank, word.generation) and not standin.has_died(word.rank):
        if time.monotonic() > deadline:
            what = f"engine {word.rank} has not dialled this server within {_DIAL_PATIENCE:g} s"
            raise StartupError(what, rank=word.rank, phase="connecting")
        await asyncio.sleep(_TRY_AGAIN)
    engine.joined(word.ready)
    return engine


def _coordination(engines: Iterable[KnownEngine]) -> Coordination | None:
    """The way to the coordinator that the engines name, if they do. Raises ConfigError."""
    said = [engine.ready for engine in engines if engine.ready is not None and engine.ready.dp_stats_address]
    if not said or (address := said[0].dp_stats_address) is None:
        return None
    return Coordination(address, lockstep=said[0].data_parallel_size > 1).open()
