"""Cancelling, dropping and losing an asyncio client's streams: only that request ends, and it does end."""

import asyncio
import os
import random
import signal

import pytest

from muro import AsyncMPClient, ClientClosedError, connect_async
from muro.errors import CallTimeoutError, EngineDeadError, StartupError, UsageError
from tests.support.asking import FOREVER, ask
from tests.support.counts import FULL, count
from tests.support.deadline import until_async


async def open_client(**options: object) -> AsyncMPClient:
    return await connect_async(engine="faulty", options=options)


async def nothing_left(client: AsyncMPClient) -> None:
    async def check() -> bool:
        return await client.call("num_live") == 0

    for _ in range(200):
        if await check():
            break
    assert await check()
    assert client.engines()[0].in_flight == 0


async def consume(client: AsyncMPClient, request_id: str, max_tokens: int = FOREVER) -> list[int]:
    return [t async for o in client.generate(ask(request_id, max_tokens)) for t in o.new_token_ids]


@pytest.mark.cases
@pytest.mark.timeout(300 if FULL else 60)
def test_fc10_cancelled_at_a_random_await_point() -> None:
    async def main() -> None:
        order = random.Random(10)
        async with await open_client() as client:
            for _ in range(count(6, 100)):
                tasks = [asyncio.create_task(consume(client, f"r{n}")) for n in range(100)]
                victims = order.sample(tasks, k=len(tasks))
                for victim in victims:
                    if order.random() < 0.3:
                        await asyncio.sleep(0)
                    victim.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ended)
            await nothing_left(client)
            assert len(await consume(client, "after", 5)) == 5

    asyncio.run(main())


@pytest.mark.cases
def test_fc15_cancelled_at_each_await_point_in_turn() -> None:
    async def main() -> None:
        async with await open_client(step_ms=1) as client:
            for turns in range(count(30, 300)):
                task = asyncio.create_task(consume(client, "victim"))
                beside = asyncio.create_task(consume(client, "beside", 3))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(await beside) == 3
            await nothing_left(client)

    asyncio.run(main())


def test_a_client_side_timeout_before_the_first_token() -> None:
    async def main() -> None:
        async with await open_client(step_ms=200) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await consume(client, "a")
            assert len(await consume(client, "a", 1)) == 1
            await nothing_left(client)

    asyncio.run(main())


def test_breaking_out_frees_the_id_at_once() -> None:
    async def main() -> None:
        async with await open_client(step_ms=1) as client:
            for _ in range(50):
                async for _item in client.generate(ask("same", FOREVER)):
                    break
            stream = client.generate(ask("same", FOREVER))
            await stream.aclose()
            client.generate(ask("same", FOREVER))  # never read at all
            assert len(await consume(client, "same", 3)) == 3
            await nothing_left(client)

    asyncio.run(main())


def test_calls_can_be_cancelled_and_time_out() -> None:
    async def main() -> None:
        async with await open_client() as client:
            task = asyncio.create_task(client.call("inject", "operation:sleep=0.2"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(CallTimeoutError):
                await client.call("is_sleeping", timeout=0.01)
            assert await client.call("num_live") == 0

    asyncio.run(main())


def test_several_readers_of_batches_share_them_and_may_be_cancelled() -> None:
    async def main() -> None:
        async with await open_client(step_ms=1) as client:
            lost = [asyncio.create_task(client.get_outputs()) for _ in range(3)]
            await asyncio.sleep(0)
            for task in lost:
                task.cancel()
            readers = [asyncio.create_task(client.get_outputs()) for _ in range(3)]
            client.add_request(ask("a", 3))
            batches = await asyncio.gather(*readers)
            assert sorted(t for batch in batches for o in batch.outputs for t in o.new_token_ids) == [7, 8, 9]
            assert not await client.get_outputs(timeout=0.01)

    asyncio.run(main())


def test_closing_wakes_everybody() -> None:
    async def main() -> None:
        client = await open_client(step_ms=5)
        stream = asyncio.create_task(consume(client, "a"))
        call = asyncio.create_task(client.call("inject", "operation:sleep=0.3"))
        await asyncio.sleep(0)
        await asyncio.gather(client.aclose(), client.aclose())
        for task in (stream, call):
            with pytest.raises(ClientClosedError):
                await task
        client.close()

    asyncio.run(main())


def test_another_loop_is_refused() -> None:
    with asyncio.Runner() as runner, asyncio.Runner() as other:
        client = runner.run(open_client())

        async def use() -> None:
            client.generate(ask("a"))

        with pytest.raises(UsageError, match="another event loop"):
            other.run(use())
        with pytest.raises(UsageError, match="another event loop"):
            client.generate(ask("a"))
        runner.run(client.aclose())


def test_closing_from_another_thread() -> None:
    async def main() -> None:
        client = await open_client()
        stream = asyncio.create_task(consume(client, "a"))
        await asyncio.sleep(0)
        await asyncio.to_thread(client.close)
        with pytest.raises(ClientClosedError):
            await stream
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(main())


def test_a_cancelled_start_leaves_nothing() -> None:
    async def main() -> None:
        for turns in range(4):
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()
            task = asyncio.create_task(
                connect_async(
                    engine="faulty",
                    options={"fault": "loading:hang"},
                    on_progress=lambda _, loop=loop, begun=begun: loop.call_soon_threadsafe(begun.set),
                )
            )
            if turns:
                await begun.wait()
            else:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_a_failed_start_is_told() -> None:
    with pytest.raises(StartupError, match="fault was asked for"):
        asyncio.run(open_client(fault="loading:raise"))


def test_death_while_idle_is_noticed_without_a_question() -> None:
    async def main() -> None:
        async with await open_client() as client:
            pid = client.engines()[0].pid
            assert pid
            os.kill(pid, signal.SIGKILL)
            await until_async(lambda: client.engines()[0].state == "dead", within=2)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                client.check_health()

    asyncio.run(main())
