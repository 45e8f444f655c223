"""Several engines behind one client: who gets what, and that a death is nobody else's business."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any

import pytest

from muro import AsyncMPClient, connect_async
from muro.config import ConnectConfig, EngineConfig
from muro.errors import EngineDeadError
from muro.wire.request import EngineCoreRequest
from tests.support.asking import ask
from tests.support.counts import FULL
from tests.support.restarts import PATIENT

pytestmark = pytest.mark.cases

RANKS = 4


async def four(balance: str = "load", **options: Any) -> AsyncMPClient:
    fast = {"step_us": 2000, "sequence_us": 0, "prefill_us_per_token": 0}
    engine = EngineConfig(engine="sim", options=fast | options, log_level="ERROR")
    return await connect_async(
        ConnectConfig(engine=engine, num_engines=RANKS, restart=PATIENT, data_parallel_balance=balance)  # type: ignore[arg-type]
    )


def mixed(chance: random.Random, name: object) -> EngineCoreRequest:
    """1 ... 100 tokens, as many short ones as long ones."""
    return ask(str(name), int(10 ** chance.uniform(0, 2)), [1], ignore_eos=True)


async def served(client: AsyncMPClient, request: EngineCoreRequest) -> int:
    """By which rank."""
    stream = client.generate(request)
    assert stream.engine is not None
    async for _ in stream:
        pass
    return stream.engine[0]


def test_in_bursts_of_mixed_requests_ranks_differ_by_two_at_most() -> None:
    async def test() -> None:
        chance = random.Random(5)
        async with await four() as client:
            tasks: list[asyncio.Future[int]] = []
            for burst in range(4):
                requests = [mixed(chance, (burst, number)) for number in range(100)]
                tasks += [asyncio.ensure_future(served(client, request)) for request in requests]
                await asyncio.sleep(0)  # all are sent
                counts = [status.in_flight for status in client.engines()]
                assert max(counts) - min(counts) <= 2, counts
                await asyncio.wait(tasks[-100:], return_when=asyncio.FIRST_COMPLETED)
            assert len(await asyncio.gather(*tasks)) == 400
            assert not any(status.in_flight for status in client.engines())

    asyncio.run(test())


def test_a_slow_rank_gets_fewer() -> None:
    async def test() -> None:
        chance, ranks = random.Random(7), Counter[int]()
        async with await four() as client:
            await client.call("inject_fault", "step:sleep=0.02@times=0", engine=2)

            async def caller(name: int) -> None:
                for number in range(12):
                    ranks[await served(client, mixed(chance, (name, number)))] += 1

            await asyncio.gather(*map(caller, range(32)))
            assert ranks[2] < 0.7 * min(ranks[rank] for rank in (0, 1, 3)), ranks

    asyncio.run(test())


# --- Prefixes ----------------------------------------------------------------------------------------------------


def conversations(turns: int) -> list[list[int]]:
    """50 conversations about a long text each, interleaved; a cache of `BLOCKS` holds a quarter of them, not more."""
    chance = random.Random(3)
    talks = [[chance.randrange(32, 120) for _ in range(640)] for _ in range(50)]
    trace = []
    for _ in range(turns):
        for talk in chance.sample(talks, len(talks)):
            talk += [chance.randrange(32, 120) for _ in range(48)]
            trace.append(list(talk))
    return trace


BLOCKS = 700


async def replayed(balance: str) -> tuple[float, float, Counter[int]]:
    """Hit rate in tokens, median time to the first token, requests per rank; eight callers."""
    trace = list(enumerate(conversations(4)))[::-1]
    cached = prompt = 0
    waits: list[float] = []
    ranks = Counter[int]()
    async with await four(balance, num_blocks=BLOCKS, prefill_us_per_token=50) as client:

        async def caller() -> None:
            nonlocal cached, prompt
            while trace:
                number, tokens = trace.pop()
                began = monotonic()
                stream = client.generate(ask(str(number), 2, tokens, ignore_eos=True))
                assert stream.engine is not None
                ranks[stream.engine[0]] += 1
                stats = (await anext(stream)).prefill_stats
                waits.append(monotonic() - began)
                assert stats is not None
                cached, prompt = cached + stats.num_cached_tokens, prompt + stats.num_prompt_tokens
                async for _ in stream:
                    pass

        await asyncio.gather(*(caller() for _ in range(8)))
    return cached / prompt, median(waits), ranks


@pytest.mark.timeout(120)
def test_conversations_go_where_their_beginning_was_computed() -> None:
    async def test() -> None:
        by_load, wait_by_load, _ = await replayed("load")
        by_prefix, wait_by_prefix, ranks = await replayed("prefix")
        told = (
            f"hits {by_load:.2f} -> {by_prefix:.2f}, first token {wait_by_load:.4f} -> {wait_by_prefix:.4f} s, {ranks}"
        )
        print(told)
        assert by_prefix >= 2 * by_load and wait_by_prefix < wait_by_load, told
        assert max(ranks.values()) <= 1.5 * sum(ranks.values()) / RANKS, told

    asyncio.run(test())


# --- Deaths ------------------------------------------------------------------------------------------------------

STREAMS, TOKENS = 200, 150


async def gaps(client: AsyncMPClient, number: int, kill: asyncio.Event) -> tuple[int, list[float]] | None:
    """Rank, and seconds between tokens; None for one that died with its engine."""
    stream = client.generate(ask(str(number), TOKENS, [1], ignore_eos=True))
    assert stream.engine is not None
    came: list[float] = []
    try:
        async for output in stream:
            came += [monotonic()] * len(output.new_token_ids)
            if len(came) == TOKENS // 3:
                kill.set()
    except EngineDeadError:
        return None
    assert len(came) == TOKENS
    return stream.engine[0], [after - before for before, after in pairwise(came)]


@pytest.mark.timeout(120)
def test_a_rank_that_is_killed_takes_nobody_along_and_comes_back() -> None:
    async def test() -> None:
        async with await four(step_us=10_000) as client:
            spreads = []
            for kills in (False, True):
                kill = asyncio.Event()
                streams = asyncio.gather(*(gaps(client, number, kill) for number in range(STREAMS)))
                await kill.wait()
                if kills:
                    pid = client.engines()[1].pid
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                ended = await streams
                lived = [found for found in ended if found is not None]
                assert Counter(rank for rank, _ in lived) == dict.fromkeys((0, 2, 3) if kills else range(RANKS), 50)
                spreads.append(sorted(gap for _, found in lived for gap in found))
            calm, disturbed = (spread[int(0.99 * len(spread))] for spread in spreads)
            print(f"p99 between tokens: {calm * 1e3:.1f} ms, with a death {disturbed * 1e3:.1f} ms")
            if FULL:  # a machine of its own
                assert disturbed < 1.2 * calm + 0.01
            await client.wait_serving(20, engine=1)
            assert await served(client, pinned(1)) == 1
            assert [status.generation for status in client.engines()] == [0, 1, 0, 0]

    asyncio.run(test())


def pinned(rank: int) -> EngineCoreRequest:
    request = ask("pinned", 3)
    request.data_parallel_rank = rank
    return request
