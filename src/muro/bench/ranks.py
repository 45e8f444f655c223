"""`muro bench ranks`: what independent ranks are worth, and what the death of one costs the others.

Simulated engines with a step of a fixed length and streams through the library, as a front-end has them. Each round
measures one rank and then all of them, so a machine that changes its pace changes it for both. Keys of the result:

    one_tokens_s, all_tokens_s    median over the rounds; tokens per second of all streams together
    times                         median over the rounds of all / one
    ranks, streams_per_rank, step_ms
    quiet_ms, killed_ms: {p50, p99, max}
                                  between two outputs of a stream on ranks that live, before and after a kill -9 of one
    disturbed                     streams on ranks that live and did not finish; must be 0
    back_s                        until the killed rank serves again
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec

from muro.bench.sampling import median, spread
from muro.clients.aio import AsyncMPClient
from muro.clients.connect import connect_async
from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.errors import EngineDeadError
from muro.wire.request import EngineCoreRequest, SamplingParams


class Ranks(msgspec.Struct, frozen=True):
    """What is measured."""

    ranks: int = 4
    streams_per_rank: int = 16
    step_ms: float = 10.0
    tokens: int = 256
    rounds: int = 3
    killed_streams: int = 200
    """Streams over all ranks when one is killed."""


def run(plan: Ranks, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure."""
    return asyncio.run(_run(plan, progress))


async def _run(plan: Ranks, progress: Callable[[str], None]) -> dict[str, Any]:
    alone: list[float] = []
    together: list[float] = []
    for number in range(plan.rounds):
        for ranks, rates in ((1, alone), (plan.ranks, together)):
            progress(f"round {number + 1}/{plan.rounds}: {ranks} rank(s)")
            async with await connect_async(_config(plan, ranks)) as client:
                await _rate(client, plan.streams_per_rank * ranks, 8)
                rates.append(await _rate(client, plan.streams_per_rank * ranks, plan.tokens))
    progress("kill -9 of one")
    async with await connect_async(_config(plan, plan.ranks)) as client:
        killed = await _kill_one(client, plan)
    return {
        "one_tokens_s": round(median(alone)),
        "all_tokens_s": round(median(together)),
        "times": round(median([many / one for one, many in zip(alone, together, strict=True)]), 3),
        "ranks": plan.ranks,
        "streams_per_rank": plan.streams_per_rank,
        "step_ms": plan.step_ms,
        **killed,
    }


def _config(plan: Ranks, ranks: int) -> ConnectConfig:
    engine = EngineConfig(engine="sim", options={"step_us": plan.step_ms * 1000})
    return ConnectConfig(engine=engine, num_engines=ranks, restart=RestartPolicy(policy="always"))


def _request(name: str, tokens: int) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return EngineCoreRequest(name, [7, 8, 9], sampling_params=params)


async def _rate(client: AsyncMPClient, streams: int, tokens: int) -> float:
    """Tokens per second of so many streams at once."""

    async def read(number: int) -> int:
        return sum([len(out.new_token_ids) async for out in client.generate(_request(f"r{number}", tokens))])

    began = time.perf_counter()
    total = sum(await asyncio.gather(*map(read, range(streams))))
    return total / (time.perf_counter() - began)


async def _kill_one(client: AsyncMPClient, plan: Ranks) -> dict[str, Any]:
    killed_at = float("inf")
    gaps: dict[bool, list[float]] = {False: [], True: []}
    disturbed = 0
    flowing = asyncio.Event()
    silent = set(range(plan.killed_streams))

    async def read(number: int) -> None:
        nonlocal disturbed
        rank = number % plan.ranks
        request = _request(f"k{number}", plan.tokens)
        request.data_parallel_rank = rank
        last = 0.0
        try:
            async for _ in client.generate(request):
                now = time.perf_counter()
                if last and rank:
                    gaps[now > killed_at].append((now - last) * 1000)
                last = now
                silent.discard(number)
                if not silent:
                    flowing.set()
        except EngineDeadError:
            disturbed += rank != 0

    tasks = [asyncio.create_task(read(number)) for number in range(plan.killed_streams)]
    await flowing.wait()
    await asyncio.sleep(plan.tokens * plan.step_ms / 1000 / 3)
    if (pid := client.engines()[0].pid) is not None:
        killed_at = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    await client.wait_serving(engine=0)
    back = time.perf_counter() - killed_at
    return {
        "quiet_ms": spread(gaps[False], 2),
        "killed_ms": spread(gaps[True], 2),
        "disturbed": disturbed,
        "back_s": round(back, 2),
    }


def text(result: dict[str, Any]) -> str:
    """The figures for people; "-" marks a claim that does not hold."""
    ranks, quiet, killed = result["ranks"], result["quiet_ms"], result["killed_ms"]
    allowed = quiet["p99"] * 1.2 + 10
    rows = (
        (True, "one rank", f"{result['one_tokens_s']:,} tokens/s", ""),
        (result["times"] >= 0.95 * ranks, f"{ranks} ranks", f"{result['times']:.2f} x", f">= {0.95 * ranks:.1f} x"),
        (result["disturbed"] == 0, "streams of the others", f"{result['disturbed']} disturbed", "none"),
        (
            killed["p99"] <= allowed,
            "between tokens, p99",
            f"{quiet['p99']:.1f} -> {killed['p99']:.1f} ms",
            f"<= {allowed:.1f} ms",
        ),
        (True, "the killed one is back", f"{result['back_s']:.2f} s", ""),
    )
    return "\n".join(f"{'+' if holds else '-'} {what:<22} {found:>24}   {claim}" for holds, what, found, claim in rows)
