"""Two servers before four independent ranks: whoever dies, streams of other ranks notice nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise
from time import monotonic

import httpx
import psutil
import pytest

from tests.support.counts import FULL, count
from tests.support.crews import Stream, engine_pids, healths
from tests.support.deadline import until_async
from tests.support.server import Server

RANKS, STEP_MS = 4, 50
STREAMS = count(40, 200)
WATCHED_S = float(count(1, 10))
"""Of each part: nothing dies, a rank dies, a rank and the coordinator die."""

pytestmark = [pytest.mark.cases, pytest.mark.timeout(180)]


def coordinator_pid(server: Server) -> int:
    """The one process below the server that coordinates."""
    below = psutil.Process(server.process.pid).children(recursive=True)
    (found,) = [process.pid for process in below if "coordinator" in " ".join(process.cmdline())]
    return found


def steps(server: Server) -> dict[str, int]:
    """Steps that each rank has ended."""
    lines = httpx.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    found = [line.rsplit(" ", 1) for line in lines if line.startswith("muro:engine_steps{")]
    return {labels.partition('engine="')[2].partition('"')[0]: int(float(value)) for labels, value in found}


def gap_p99(streams: list[Stream], since: float, until: float) -> float:
    """Seconds between two pieces of a stream."""
    inside = [[t for t in stream.times if since <= t <= until] for stream in streams]
    gaps = sorted(after - before for times in inside for before, after in pairwise(times))
    return gaps[int(0.99 * len(gaps))]


class Watched:
    """What the ranks that live do for a while: seconds of a step, by rank, and seconds between pieces of streams."""

    def __init__(self, server: Server, streams: list[Stream], ranks: set[int]) -> None:
        self._server, self._ranks = server, ranks
        self._streams = [stream for number, stream in enumerate(streams) if number % RANKS in ranks]
        self.step_s: dict[int, float] = {}
        self.gap_s = 0.0

    async def watch(self) -> Watched:
        began, before = monotonic(), await asyncio.to_thread(steps, self._server)
        await asyncio.sleep(WATCHED_S)
        ended, after = monotonic(), await asyncio.to_thread(steps, self._server)
        for rank in self._ranks:
            self.step_s[rank] = (ended - began) / (after[str(rank)] - before[str(rank)])
        self.gap_s = gap_p99(self._streams, began, ended)
        return self

    def __str__(self) -> str:
        each = " ".join(f"{rank}: {seconds * 1000:.1f}" for rank, seconds in self.step_s.items())
        return f"steps of {each} ms, p99 between pieces {self.gap_s * 1000:.1f} ms"


async def scenario(server: Server) -> None:
    streams = [Stream(server.url, f"stream {n} ", 100_000, n % RANKS) for n in range(STREAMS)]
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    await until_async(lambda: all(stream.pieces for stream in streams), within=30, what="all streams have begun")
    parts: list[Watched] = []
    dead: set[int] = set()
    for victim, with_coordinator in ((None, False), (0, False), (1, True)):
        doomed = [] if victim is None else [(await asyncio.to_thread(engine_pids, server))[victim]]
        doomed += [coordinator_pid(server)] if with_coordinator else []
        dead |= set() if victim is None else {victim}
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        parts.append(await Watched(server, streams, set(range(RANKS)) - dead).watch())
        print(f"killed {len(doomed)}: {parts[-1]}")
    for number, (stream, task) in enumerate(zip(streams, tasks, strict=True)):
        assert task.done() == (number % RANKS in dead), number
        assert (stream.error is not None) == task.done()
    calm = parts[0]
    for part in parts[1:]:
        if FULL:  # a machine of its own
            assert part.gap_s < 1.2 * calm.gap_s + 0.01, (str(calm), str(part))
            assert all(seconds < 1.2 * calm.step_s[rank] for rank, seconds in part.step_s.items()), str(part)
    await until_async(lambda: [e["state"] for e in healths(server)["engines"]] == ["serving"] * RANKS, within=30)
    answers = await asyncio.gather(*(Stream(server.url, "again", 5, rank).run() for rank in range(RANKS)))
    assert [answer.text for answer in answers] == ["again"] * RANKS
    assert coordinator_pid(server)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_killed_rank_and_a_killed_coordinator_disturb_nobody_else() -> None:
    many = ("--api-server-count", "2", "--data-parallel-size", str(RANKS))
    paced = ("--engine", "paced", "--engine-option", f"step_ms={STEP_MS}")
    with Server(*many, *paced) as server:
        asyncio.run(scenario(server.ready(within=120)))
