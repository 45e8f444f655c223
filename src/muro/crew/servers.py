"""The server processes of a crew: started, watched, replaced when they die, ended. In the parent's loop.

A server that dies is replaced after a pause that grows, whatever it died of; with one death more than the budget allows
it is a crash loop, and the crew ends. One that does not even come up the first time has settings that are wrong, or
nothing will help: then the start has failed. Invariants:

- A successor is started only when its predecessor, and all that it had started, has ended.
- `over` tells the first thing that ends the crew. Once it was asked to stop, nothing is started and nobody is missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from muro.clients.closing import in_thread
from muro.config import RestartPolicy
from muro.crew.interface import ServerStatus
from muro.errors import CrashLoopError, MuroError, StartupError
from muro.launch import shutdown
from muro.launch.restart import Decision, RankState, Restarts
from muro.launch.spawn import Child

log = logging.getLogger(__name__)

_LOOP_TICK = 0.01
"""Seconds by which a loop may wake us early."""

Start = Callable[[int, int], Child]
"""Starts the process of one server, by index and generation. Raises StartupError, ConfigError."""


class _Server:
    """One place in the crew: the process that serves or served last, and what becomes of it."""

    def __init__(self, index: int, policy: RestartPolicy) -> None:
        self.index = index
        self.restarts = Restarts(policy)
        self.child: Child | None = None
        self.since: float | None = None
        """When the process that runs began to serve."""
        self.came_up = False
        """Whether any process of this place has ever served."""
        self.runs = False
        """Whether there is a process now, as far as was heard: asking the system would cost an idle parent its rest."""

    def status(self) -> ServerStatus:
        state = "serving" if self.since is not None else "restarting" if self.came_up else "starting"
        return ServerStatus(
            index=self.index,
            state=state,
            pid=self.child.pid if self.child is not None and self.runs else None,
            generation=self.restarts.generation,
            since=self.since,
        )


class Servers:
    """So many servers. Made in the loop that watches them.

    Args:
        number: how many.
        start: starts one.
        policy: back-off and budget of restarts.
        on_end: called with the index of each that has ended.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        number: int,
        start: Start,
        policy: RestartPolicy,
        on_end: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._on_end = on_end
        self._clock = clock
        self._servers = [_Server(index, policy) for index in range(number)]
        self._loop = asyncio.get_running_loop()
        self._replacing: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.over: asyncio.Future[MuroError] = self._loop.create_future()
        """Why the crew cannot go on."""
        self.all_served = asyncio.Event()
        """Set once each of them has served."""
        self.all_ended = asyncio.Event()
        """Set once they were asked to stop and have."""

    def open(self) -> None:
        """Start all. Raises StartupError, ConfigError; those that run then are ended by `stop`."""
        for server in self._servers:
            self._begin(server)

    def serves(self, index: int, generation: int) -> None:
        """A server has said that it serves."""
        server = self._servers[index]
        if server.restarts.generation != generation or not server.runs:
            return
        server.since = self._clock()
        server.came_up = True
        if server.restarts.state is RankState.STARTING:
            server.restarts.serves()
            log.warning("server %d serves again: generation %d", index, generation)
        if all(each.came_up for each in self._servers):
            self.all_served.set()

    def statuses(self) -> list[ServerStatus]:
        """How each of them is."""
        return [server.status() for server in self._servers]

    def terminate(self) -> None:
        """Ask all to stop. Asked again, they end their patience with callers."""
        self.let_end()
        for server in self._servers:
            if server.child is not None:
                server.child.terminate()

    def let_end(self) -> None:
        """They are about to end by themselves: nobody is missed."""
        self._stopping = True
        for task in self._replacing:
            task.cancel()
        self._look_whether_all_ended()

    async def stop(self, patience: float) -> None:
        """End all: they get `patience` seconds after SIGTERM. Last of all."""
        self.terminate()
        if self._replacing:
            await asyncio.wait(self._replacing)
        children = [server.child for server in self._servers if server.child is not None]
        for child in children:
            if child.sentinel >= 0:  # else it was closed to make room for a successor
                self._loop.remove_reader(child.sentinel)
        await in_thread(lambda: _stop(children, patience))

    def _begin(self, server: _Server) -> None:
        child = server.child = self._start(server.index, server.restarts.generation)
        server.runs = True
        self._loop.add_reader(child.sentinel, self._ended, server, child)

    def _ended(self, server: _Server, child: Child) -> None:
        """The process of a server is no more."""
        self._loop.remove_reader(child.sentinel)
        child.poll()
        server.runs, server.since = False, None
        self._on_end(server.index)
        if self._stopping:
            self._look_whether_all_ended()
        elif not server.came_up:
            self._end(child.death().startup_error(None))
        else:
            death = child.death()
            self._follow(server, child, death.how() + death.details())

    def _follow(self, server: _Server, child: Child, words: str) -> None:
        """Decide what follows a death."""
        decision = server.restarts.died(child.poll(), self._clock())
        if not decision.restart:
            self._end(CrashLoopError(f"{child.name} has died: {words}. {_sentence(decision)}"))
            return
        log.error("%s has died, and is replaced in %.1f s: %s", child.name, decision.delay, words)
        task = self._loop.create_task(self._replace(server, child))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, server: _Server, child: Child) -> None:
        await in_thread(child.close)
        await asyncio.sleep(server.restarts.remaining(self._clock()))
        server.restarts.start(self._clock() + _LOOP_TICK)
        try:
            self._begin(server)
        except StartupError as error:
            self._follow(server, child, error.message)

    def _end(self, error: MuroError) -> None:
        if not self.over.done():
            self.over.set_result(error)

    def _look_whether_all_ended(self) -> None:
        if self._stopping and not any(server.runs for server in self._servers):
            self.all_ended.set()


def _stop(children: list[Child], timeout: float) -> None:
    shutdown.stop(children, timeout)


def _sentence(decision: Decision) -> str:
    return f"No server is started again: {decision.why}"
