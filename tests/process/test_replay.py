"""Requests that outlive their engine: real engines are killed under streams, calls and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from typing import Any

import httpx
import pytest

import muro
from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.errors import EngineDeadError, RequestFailedError
from muro.wire.request import OutputKind
from tests.support.counts import count
from tests.support.replaying_sim import SIM, params_for
from tests.support.server import Server

PATIENT = RestartPolicy(policy="on-failure", backoff_first=0.02, backoff_max=0.02, budget=10_000)
pytestmark = pytest.mark.cases


async def start(restart: RestartPolicy = PATIENT, engine: str = "sim", engines: int = 1, **more: Any) -> muro.AsyncLLM:
    options = SIM if engine == "sim" else {}
    connect = ConnectConfig(restart=restart, num_engines=engines, engine=EngineConfig(log_level="ERROR"))
    settings = {"on_engine_death": "replay", **more}
    return await muro.AsyncLLM.start(engine=engine, options=options, connect=connect, **settings)


def pid_of(llm: muro.AsyncLLM) -> int | None:
    status = llm.engines()[0]
    return status.pid if status.state == "serving" else None


async def kill(llm: muro.AsyncLLM, number: int = signal.SIGKILL) -> None:
    """Kill the engine that serves, as soon as one does."""
    await llm.client.wait_serving()
    pid = pid_of(llm)
    assert pid is not None
    os.kill(pid, number)
    async with asyncio.timeout(5):
        while pid_of(llm) == pid:  # noqa: ASYNC110 - the client hears of it in this loop, from its own reader
            await asyncio.sleep(0.002)


async def told(llm: muro.AsyncLLM, number: int, prompt: str = "number") -> tuple[str, list[int], str | None]:
    text, tokens, reason = "", [], None
    async for output in llm.generate(f"{prompt} {number}", params_for(number), priority=number % 3 - 1):
        choice = output.outputs[0]
        text += choice.text
        tokens += choice.token_ids
        reason = choice.finish_reason
    return text, tokens, reason


STREAMS = 32


@pytest.mark.timeout(900)
def test_kills_under_streams_lose_and_double_nothing() -> None:
    async def test() -> None:
        kills = count(6, 100)
        chance = random.Random(7)
        async with await start() as llm:
            undisturbed = await asyncio.gather(*(told(llm, number) for number in range(STREAMS)))
            done = 0
            rounds = 0
            while done < kills:
                rounds += 1
                streams = asyncio.gather(*(told(llm, number) for number in range(STREAMS)))
                while not streams.done() and done < kills:
                    await asyncio.sleep(chance.uniform(0, 0.4))
                    if not streams.done():
                        await kill(llm)
                        done += 1
                assert await streams == undisturbed
            assert llm.metrics.replayed > kills
            assert llm.metrics.quarantined == 0
            assert not len(llm._requests.quarantine)
            print(f"{done} kills, {rounds} rounds of {STREAMS} streams, {llm.metrics.replayed} attempts made again")

    asyncio.run(test())


def test_with_two_engines_nobody_waits_for_a_restart() -> None:
    async def test() -> None:
        slow = RestartPolicy(policy="on-failure", backoff_first=30, backoff_max=30)
        async with await start(restart=slow, engines=2) as llm:
            undisturbed = await asyncio.gather(*(told(llm, number) for number in range(8)))
            streams = asyncio.gather(*(told(llm, number) for number in range(8)))
            await asyncio.sleep(0.05)
            await kill(llm)
            assert await streams == undisturbed
            assert llm.metrics.replayed == 4
            assert [status.state == "serving" for status in llm.engines()] == [False, True]

    asyncio.run(test())


@pytest.mark.parametrize("policy", ["fail", "replay"])
def test_a_request_for_one_engine_waits_for_that_one(policy: str) -> None:
    """Another one serves meanwhile, and so does this loop."""

    async def test() -> None:
        async with await start(engines=2, on_engine_death=policy) as llm:
            await kill_rank_0(llm)
            params = muro.SamplingParams(
                max_tokens=5, temperature=0, ignore_eos=True, output_kind=OutputKind.FINAL_ONLY
            )
            waiting = asyncio.create_task(anext(llm.generate("abc", params, data_parallel_rank=0)))
            here = await anext(llm.generate("abc", params))
            assert len(here.outputs[0].token_ids) == 5
            async with asyncio.timeout(20):
                assert (await waiting).outputs[0].token_ids == here.outputs[0].token_ids
            status = llm.engines()[0]
            assert (status.state, status.generation) == ("serving", 1)

    asyncio.run(test())


async def kill_rank_0(llm: muro.AsyncLLM) -> None:
    pid = pid_of(llm)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        while llm.engines()[0].state == "serving":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.002)


def test_several_choices_and_kinds_of_output() -> None:
    async def test() -> None:
        async with await start() as llm:

            async def last(kind: OutputKind) -> list[tuple[str, list[int]]]:
                params = muro.SamplingParams(n=3, seed=4, max_tokens=200, ignore_eos=True, output_kind=kind)
                outputs = [output async for output in llm.generate("abc", params)]
                return [(choice.text, choice.token_ids) for choice in outputs[-1].outputs]

            kinds = (OutputKind.CUMULATIVE, OutputKind.FINAL_ONLY)
            undisturbed = [await last(kind) for kind in kinds]
            calls = asyncio.gather(*map(last, kinds))
            for _ in range(3):
                await asyncio.sleep(0.03)
                await kill(llm)
            assert await calls == undisturbed

    asyncio.run(test())


def test_unseeded_requests_get_all_their_tokens() -> None:
    async def test() -> None:
        async with await start() as llm:
            params = muro.SamplingParams(max_tokens=200, ignore_eos=True)

            async def ask() -> list[int]:
                async for output in llm.generate("abc", params):
                    tokens = output.outputs[0].token_ids
                return tokens

            calls = asyncio.gather(*(ask() for _ in range(4)))
            await asyncio.sleep(0.05)
            await kill(llm)
            lists = await calls
            assert [len(tokens) for tokens in lists] == [200] * 4
            assert len(set(map(tuple, lists))) == 4

    asyncio.run(test())


@pytest.mark.parametrize(
    ("fault", "deaths"),
    [
        ("step:signal=SIGSEGV", 3),
        pytest.param("step:raise", 3, marks=pytest.mark.slow),
        pytest.param("step:signal=SIGKILL", 5, marks=pytest.mark.slow),
    ],
)
def test_a_poisonous_request_is_given_up_and_its_neighbours_are_served(fault: str, deaths: int) -> None:
    async def test() -> None:
        async with await start() as llm:
            undisturbed = await asyncio.gather(*(told(llm, number) for number in range(8)))
            neighbours = [asyncio.create_task(told(llm, number)) for number in range(8)]
            await asyncio.sleep(0.05)
            poison = muro.SamplingParams(max_tokens=50, extra_args={"fault": fault})
            with pytest.raises(RequestFailedError, match=rf"{deaths} times .* nothing else explains") as raised:
                async for _ in llm.generate("poison", poison):
                    pass
            assert isinstance(raised.value.__cause__, EngineDeadError)
            assert await asyncio.gather(*neighbours) == undisturbed
            assert llm.engines()[0].generation == deaths
            assert await told(llm, 3) == undisturbed[3]

    asyncio.run(test())


def test_an_engine_that_cannot_continue_is_told_apart() -> None:
    """The echo does not know how; what it had not begun it can begin again."""

    async def test() -> None:
        async with await start(engine="paced") as llm:
            params = muro.SamplingParams(max_tokens=10_000)
            stream = aiter(llm.generate("abc", params))
            await anext(stream)
            await kill(llm)
            with pytest.raises(RequestFailedError, match="does not know how to continue"):
                while True:
                    await anext(stream)
            outputs = [output async for output in llm.generate("abc", muro.SamplingParams(max_tokens=3))]
            assert outputs[-1].outputs[0].text == "abc"

    asyncio.run(test())


def test_leaving_while_the_engine_restarts() -> None:
    async def test() -> None:
        async with await start(restart=RestartPolicy(policy="always", backoff_first=30, backoff_max=30)) as llm:
            running = [asyncio.create_task(told(llm, number)) for number in range(4)]
            await asyncio.sleep(0.05)
            await kill(llm)
            new = asyncio.create_task(told(llm, 9))
            await asyncio.sleep(0.05)
            for task in (*running[:2], new):
                task.cancel()
            assert all(
                isinstance(end, asyncio.CancelledError)
                for end in await asyncio.gather(*running[:2], new, return_exceptions=True)
            )
            assert llm.abort_all() >= 2
            assert [end[2] for end in await asyncio.gather(*running[2:])] == ["abort", "abort"]
            assert not len(llm._requests.quarantine)
            assert not llm._requests._turns

    asyncio.run(test())


def test_patience_has_an_end() -> None:
    async def test() -> None:
        slow = RestartPolicy(policy="always", backoff_first=30, backoff_max=30)
        async with await start(restart=slow, restart_wait=0.2) as llm:
            running = asyncio.create_task(told(llm, 1))
            await asyncio.sleep(0.05)
            await kill(llm)
            for ending in (running, told(llm, 2)):
                with pytest.raises(EngineDeadError, match="no engine was there") as raised:
                    await ending
                assert raised.value.restarting

    asyncio.run(test())


def test_a_crash_loop_ends_what_waits() -> None:
    async def test() -> None:
        async with await start(restart=RestartPolicy(policy="always", backoff_first=0.01, budget=1)) as llm:
            running = asyncio.create_task(told(llm, 1))
            await asyncio.sleep(0.05)
            await kill(llm)
            await kill(llm)
            with pytest.raises(EngineDeadError) as raised:
                await running
            assert not raised.value.restarting

    asyncio.run(test())


def test_who_is_cut_off_by_an_engine_that_leaves_goes_on_elsewhere() -> None:
    async def test() -> None:
        async with await start(engines=2) as llm:
            undisturbed = await asyncio.gather(*(told(llm, number) for number in range(8)))
            streams = asyncio.gather(*(told(llm, number) for number in range(8)))
            async with asyncio.timeout(20):
                while min(status.in_flight for status in llm.engines()) < 4:  # noqa: ASYNC110 - they are sent in this loop
                    await asyncio.sleep(0.002)
            await llm.client.scale(1, drain_timeout=0)
            assert await streams == undisturbed
            assert llm.metrics.replayed == 4 and [status.rank for status in llm.engines()] == [0]

    asyncio.run(test())


def test_over_http() -> None:
    with Server(
        "--engine", "sim", *[f"--engine-option={name}={value}" for name, value in SIM.items()],
        "--on-engine-death", "replay",
    ) as server:  # fmt: skip
        server.ready()
        body = {"prompt": "abc", "max_tokens": 800, "seed": 5, "ignore_eos": True}

        def usual() -> dict[str, Any]:
            answer: dict[str, Any] = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).json()
            return answer

        undisturbed = usual()
        options = {**body, "stream": True, "stream_options": {"include_usage": True}}
        killed: list[int] = []
        text, usage = "", None
        with httpx.stream("POST", f"{server.url}/v1/completions", json=options, timeout=30) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                text += "".join(choice["text"] for choice in event["choices"])
                if len(text) > 100 * (len(killed) + 1) and len(killed) < 2:
                    engine = httpx.get(f"{server.url}/health").json()["engines"][0]
                    if engine["state"] == "serving" and engine["pid"] not in killed:  # else we still read old text
                        os.kill(engine["pid"], signal.SIGKILL)
                        killed.append(engine["pid"])
        assert len(killed) == 2
        assert text == undisturbed["choices"][0]["text"]
        assert usage == undisturbed["usage"]
        assert 'muro:requests_replayed_total{model_name="sim"} 2.0' in httpx.get(f"{server.url}/metrics").text
