"""The processes of a crew come, die, are replaced, and end; real children, which are no servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muro.config import RestartPolicy
from muro.crew.servers import Servers
from muro.errors import CrashLoopError, StartupError
from muro.launch.spawn import Child, spawn
from tests.support.children import TARGETS
from tests.support.deadline import process_ended, until_async

QUICK = RestartPolicy(policy="always", backoff_first=0.01, backoff_max=0.02, budget=2, window=60)


class Crew:
    """Children in the place of servers, and what was noted of them."""

    def __init__(self, number: int, target: str, payload: dict[str, Any]) -> None:
        self.ended: list[int] = []
        self.started: list[tuple[int, int]] = []
        self._target = f"{TARGETS}:{target}"
        self._payload = payload
        self.refuse = False
        self.servers = Servers(number, self._start, QUICK, self.ended.append)

    def _start(self, index: int, generation: int) -> Child:
        if self.refuse:
            raise StartupError("no process could be made", phase="spawn")
        self.started.append((index, generation))
        return spawn(self._target, self._payload, name=f"server {index}", generation=generation)

    def pid(self, index: int) -> int:
        return self.servers.statuses()[index].pid or 0

    def states(self) -> list[tuple[str, int]]:
        return [(status.state, status.generation) for status in self.servers.statuses()]


@asynccontextmanager
async def crew(number: int = 2, target: str = "stop_politely", **payload: Any) -> AsyncIterator[Crew]:
    made = Crew(number, target, payload)
    try:
        made.servers.open()
        yield made
    finally:
        await made.servers.stop(5.0)


def test_all_serve_once_each_has_said_so() -> None:
    async def main() -> None:
        async with crew() as made:
            assert made.states() == [("starting", 0), ("starting", 0)]
            made.servers.serves(0, 0)
            made.servers.serves(1, 1)
            assert made.states() == [("serving", 0), ("starting", 0)] and not made.servers.all_served.is_set()
            made.servers.serves(1, 0)
            assert made.servers.all_served.is_set()
            pids = [made.pid(0), made.pid(1)]
        for pid in pids:
            process_ended(pid, within=0.1)

    asyncio.run(main())


def test_who_dies_is_replaced_alone_and_the_budget_bounds_it() -> None:
    async def main() -> None:
        async with crew() as made:
            for index in (0, 1):
                made.servers.serves(index, 0)
            for generation in (1, 2):
                os.kill(made.pid(0), signal.SIGKILL)
                await until_async(lambda g=generation: made.started[-1] == (0, g))
                assert made.states() == [("restarting", generation), ("serving", 0)]
                made.servers.serves(0, generation)
                assert made.states()[0] == ("serving", generation) and not made.servers.over.done()
            assert made.ended == [0, 0]
            os.kill(made.pid(0), signal.SIGKILL)
            why = await asyncio.wait_for(made.servers.over, 10)
            assert isinstance(why, CrashLoopError) and "SIGKILL" in str(why) and "died 3 times" in str(why)

    asyncio.run(main())


def test_one_that_does_not_come_up_is_no_successor_but_a_failed_start() -> None:
    async def main() -> None:
        async with crew(1, "raise_error", message="no such thing") as made:
            why = await asyncio.wait_for(made.servers.over, 20)
            assert isinstance(why, StartupError) and "server 0 did not start" in str(why)
            assert "no such thing" in str(why) and made.started == [(0, 0)]

    asyncio.run(main())


def test_a_successor_that_cannot_be_started_is_tried_again() -> None:
    async def main() -> None:
        async with crew(1) as made:
            made.servers.serves(0, 0)
            made.refuse = True
            os.kill(made.pid(0), signal.SIGKILL)
            why = await asyncio.wait_for(made.servers.over, 10)
            assert isinstance(why, CrashLoopError) and "no process could be made" in str(why)

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["terminate", "let_end"])
def test_who_ends_because_all_shall_is_not_missed(ending: str) -> None:
    async def main() -> None:
        async with crew() as made:
            for index in (0, 1):
                made.servers.serves(index, 0)
            getattr(made.servers, ending)()
            if ending == "let_end":
                for index in (0, 1):
                    os.kill(made.pid(index), signal.SIGTERM)
            await asyncio.wait_for(made.servers.all_ended.wait(), 10)
            assert made.started == [(0, 0), (1, 0)] and not made.servers.over.done()

    asyncio.run(main())


def test_a_stop_in_the_midst_of_a_replacement() -> None:
    async def main() -> None:
        async with crew(1) as made:
            made.servers.serves(0, 0)
            os.kill(made.pid(0), signal.SIGKILL)
            await until_async(lambda: made.ended == [0])
            made.servers.terminate()
            await asyncio.wait_for(made.servers.all_ended.wait(), 10)

    asyncio.run(main())
