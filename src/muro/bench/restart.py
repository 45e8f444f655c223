"""`muro bench restart`: kill the engine under many streams, again and again; how soon does everybody know, and go on?

Real parts throughout: an asyncio client with a restart policy, an engine in a process of its own, kill -9. The clock
starts right before the kill. Keys of the result:

    told_ms: {p50, p99, max}      until a stream raises, over all streams of all kills
    last_told_ms: {p50, p99, max} until the last stream of a kill raises
    serving_s: {p50, p99, max}    until a successor serves, the back-off before its start included
    kills, streams, untold        untold: streams that did not raise; must be 0
    model                         the engine's, or null
    backoff_s                     the back-off
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec

from muro.bench.sampling import spread
from muro.clients.aio import AsyncMPClient
from muro.clients.connect import connect_async
from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.errors import EngineDeadError
from muro.wire.request import EngineCoreRequest, SamplingParams

_ENDLESS = 20_000
"""More tokens than a stream gets to; the echo engines hold what they will say."""


class Kills(msgspec.Struct, frozen=True):
    """What is measured."""

    engine: str = "paced"
    model: str | None = None
    kills: int = 200
    streams: int = 64


def run(kills: Kills, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Kill and measure."""
    return asyncio.run(_run(kills, progress))


async def _run(kills: Kills, progress: Callable[[str], None]) -> dict[str, Any]:
    policy = RestartPolicy(policy="always", budget=kills.kills, backoff_max=RestartPolicy().backoff_first)
    config = ConnectConfig(engine=EngineConfig(engine=kills.engine, model=kills.model), restart=policy)
    told: list[list[float]] = []
    serving: list[float] = []
    async with await connect_async(config) as client:
        for number in range(kills.kills):
            if number % 10 == 0:
                progress(f"kill {number + 1}/{kills.kills}")
            killed, times = await _kill(client, kills.streams)
            told.append(times)
            await client.wait_serving()
            serving.append(time.perf_counter() - killed)
    return {
        "told_ms": spread([took * 1000 for times in told for took in times], 3),
        "last_told_ms": spread([max(times) * 1000 for times in told if times], 3),
        "serving_s": spread(serving, 3),
        "model": kills.model,
        "kills": kills.kills,
        "streams": kills.streams,
        "untold": kills.streams * kills.kills - sum(map(len, told)),
        "backoff_s": policy.backoff_first,
    }


async def _kill(client: AsyncMPClient, streams: int) -> tuple[float, list[float]]:
    """When the engine was killed, and how long each stream took to hear of it."""
    flowing = asyncio.Event()
    silent = set(range(streams))
    times: list[float] = []
    killed = 0.0

    async def read(number: int) -> None:
        params = SamplingParams(max_tokens=_ENDLESS, ignore_eos=True)
        try:
            async for _ in client.generate(EngineCoreRequest(f"r{number}", [7, 8, 9], sampling_params=params)):
                silent.discard(number)
                if not silent:
                    flowing.set()
        except EngineDeadError:
            times.append(time.perf_counter() - killed)

    tasks = [asyncio.create_task(read(number)) for number in range(streams)]
    await flowing.wait()
    pid = client.engines()[0].pid
    if pid is not None:
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    return killed, times


def text(result: dict[str, Any]) -> str:
    """The figures for people; "-" marks a claim that does not hold."""
    told, serving = result["told_ms"], result["serving_s"]
    # Of a killed process its parent hears when the kernel has freed its memory; a model has to be loaded again.
    soon_ms, soon_s = (50, 1) if result["model"] is None else (250, 6)
    rows = (
        (result["untold"] == 0, "callers told", f"all of {result['streams']} x {result['kills']}", "all"),
        (
            told["p99"] <= soon_ms,
            "told after",
            f"p50 {told['p50']:.1f} p99 {told['p99']:.1f} ms",
            f"p99 <= {soon_ms} ms",
        ),
        (
            serving["p99"] <= soon_s,
            "serving again",
            f"p50 {serving['p50']:.2f} p99 {serving['p99']:.2f} s",
            f"<= {soon_s} s",
        ),
    )
    return "\n".join(f"{'+' if holds else '-'} {what:<16} {found:>32}   {claim}" for holds, what, found, claim in rows)
