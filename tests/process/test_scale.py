"""The number of engines changes while they serve: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from time import monotonic
from typing import Any

import pytest

from muro import connect, connect_async
from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.errors import EngineDeadError, InvalidRequestError, StartupError, UsageError
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest
from tests.support.asking import ask
from tests.support.deadline import until
from tests.support.restarts import PATIENT, children

SIM = {"step_us": 2000, "sequence_us": 0, "prefill_us_per_token": 0, "max_num_seqs": 16}


def settings(engines: int, restart: RestartPolicy = PATIENT, **more: Any) -> ConnectConfig:
    engine = EngineConfig(engine="sim", options=SIM | more, log_level="ERROR")
    return ConnectConfig(engine=engine, num_engines=engines, restart=restart)


def tokens(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def long(name: str, length: int, rank: int | None = None) -> EngineCoreRequest:
    request = ask(name, length, [len(name)], ignore_eos=True)
    request.data_parallel_rank = rank
    return request


def test_two_four_one_and_back_under_load() -> None:
    async def test() -> None:
        async with await connect_async(settings(2)) as client:
            served: Counter[int] = Counter()
            over = asyncio.Event()

            async def calls(worker: int) -> None:
                number = 0
                while not over.is_set():
                    number += 1
                    length = 20 + (worker * 7 + number * 13) % 60
                    stream = client.generate(long(f"{worker}-{number}", length))
                    assert stream.engine is not None
                    served[stream.engine[0]] += 1
                    assert len(tokens([output async for output in stream])) == length

            load = asyncio.gather(*(calls(worker) for worker in range(24)))
            for engines, known in ((4, [(0, 0), (1, 0), (2, 0), (3, 0)]), (1, [(0, 0)]), (2, [(0, 0), (1, 1)])):
                began = monotonic()
                await client.scale(engines)
                print(f"{engines} engines after {monotonic() - began:.1f} s, {served.total()} requests")
                assert [(status.rank, status.generation) for status in client.engines()] == known
                seen = served.total()
                while served.total() < seen + 100:  # noqa: ASYNC110 - counted by the callers in this loop
                    await asyncio.sleep(0.01)
            over.set()
            await load
            assert set(served) == {0, 1, 2, 3} and len(children()) == 2
            assert not any(status.in_flight for status in client.engines())

    asyncio.run(test())


def test_the_client_for_threads_scales_too_and_a_new_engine_is_restarted_as_any_other() -> None:
    with connect(settings(1)) as client:
        client.scale(3)
        for rank in range(3):
            assert len(tokens(list(client.generate(long("a", 5, rank))))) == 5
        dead = client.engines()[2]
        assert dead.pid is not None
        os.kill(dead.pid, signal.SIGKILL)
        until(lambda: client.engines()[2].generation == 1 and client.engines()[2].state == "serving", within=20)
        assert len(tokens(list(client.generate(long("b", 5, 2))))) == 5
        client.scale(1)
        with pytest.raises(InvalidRequestError, match="ranks: 0"):
            client.generate(long("c", 5, 2))
    until(lambda: not children())


def test_who_is_to_leave_finishes_first_and_gets_nothing_new() -> None:
    async def test() -> None:
        async with await connect_async(settings(2)) as client:
            stream = client.generate(long("last", 200, 1))
            first = await anext(stream)
            scaling = asyncio.ensure_future(client.scale(1))
            await asyncio.sleep(0)
            assert client.engines()[1].state == "leaving"
            others = [client.generate(long(f"o{number}", 3)) for number in range(4)]
            assert {other.engine for other in others} == {(0, 0)}
            with pytest.raises(InvalidRequestError):
                client.generate(long("pinned", 3, 1))
            with pytest.raises(UsageError, match="already"):
                await client.scale(3)
            rest = [output async for output in stream]
            assert len(tokens([first, *rest])) == 200 and not scaling.done()
            await scaling
            assert [status.rank for status in client.engines()] == [0]
            for other in others:
                assert len(tokens([output async for output in other])) == 3

    asyncio.run(test())


def test_whose_time_is_up_is_told_so() -> None:
    async def test() -> None:
        async with await connect_async(settings(2)) as client:
            stream = client.generate(long("long", 8_000, 1))
            await anext(stream)
            await client.scale(1, drain_timeout=0.05)
            with pytest.raises(EngineDeadError, match="was let go"):
                while True:
                    await anext(stream)
            assert len(children()) == 1

    asyncio.run(test())


def test_who_gives_it_up_leaves_all_as_it_was() -> None:
    async def test() -> None:
        async with await connect_async(settings(2)) as client:
            stream = client.generate(long("long", 8_000, 1))
            await anext(stream)
            for engines, patience in ((1, 0.1), (4, 0.001)):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(patience):
                        await client.scale(engines)
            assert [status.state for status in client.engines()[:2]] == ["serving", "serving"]
            assert len(tokens([o async for o in client.generate(long("a", 3, 1))])) == 3
            await stream.aclose()

    asyncio.run(test())
    until(lambda: not children())


def test_a_dead_engine_that_nobody_restarts_makes_room_for_another() -> None:
    with connect(settings(2, RestartPolicy())) as client:
        dead = client.engines()[0]
        assert dead.pid is not None
        os.kill(dead.pid, signal.SIGKILL)
        until(lambda: client.engines()[0].state == "dead")
        assert len(tokens(list(client.generate(long("a", 5))))) == 5
        client.scale(2)
        assert [(status.rank, status.state) for status in client.engines()] == [(1, "serving"), (2, "serving")]


def test_who_was_to_leave_stays_when_the_last_other_one_dies() -> None:
    async def test() -> None:
        async with await connect_async(settings(2, RestartPolicy())) as client:
            stream = client.generate(long("long", 400, 1))
            first = await anext(stream)
            scaling = asyncio.ensure_future(client.scale(1))
            await asyncio.sleep(0)
            dead = client.engines()[0]
            assert dead.pid is not None and client.engines()[1].state == "leaving"
            os.kill(dead.pid, signal.SIGKILL)
            await scaling
            assert [status.state for status in client.engines()] == ["dead", "serving"]
            assert len(tokens([output async for output in client.generate(long("new", 5))])) == 5
            assert len(tokens([first, *[output async for output in stream]])) == 400

    asyncio.run(test())


def test_new_engines_that_do_not_come_up() -> None:
    with connect(settings(1)) as client:
        client._link._replacer._config = settings(1, num_blocks=-1)  # type: ignore[attr-defined]
        with pytest.raises(StartupError, match="engine 1"):
            client.scale(2)
        assert len(tokens(list(client.generate(long("a", 5))))) == 5
        assert [status.rank for status in client.engines()] == [0] and len(children()) == 1


@pytest.mark.parametrize("engines", [0, -1, 257, 1.0, None, True])
def test_numbers_that_cannot_be(engines: Any) -> None:
    with connect(engine="echo") as client, pytest.raises(InvalidRequestError, match="from 1 to 256"):
        client.scale(engines)
