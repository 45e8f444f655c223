"""Callers who leave: the engine hears of it, whenever and however they do.

The server runs in the test's own loop, with its engine in a process of its own, so that both sides can be asked
what they hold.
"""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from muro.child.stop_requests import StopRequests
from muro.config import ConnectConfig
from muro.llm.words import ModelChoice
from muro.server.lifespan import ServerConfig, bind, serve, url_of
from muro.server.service import Service
from muro.wire.failure import ExitCode
from muro.wire.request import SamplingParams
from tests.support.counts import FULL, count
from tests.support.deadline import until_async

# The echo engine lays out all tokens at the start: many more would keep it busy with that alone.
ENDLESS = {"prompt": "abc", "max_tokens": 30_000}


class Here:
    """A server in this loop."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def live(self) -> int:
        """Requests that the engine holds."""
        found: int = await self.service.llm.client.call("num_live")
        return found

    async def all_gone(self, within: float) -> None:
        """Both sides' tables are empty."""
        end = time.monotonic() + within
        while (left := await self.live()) or self.service.busy or self.service.llm.engines()[0].in_flight:
            assert time.monotonic() < end, f"{left} requests in the engine, {self.service.busy} in the server"
            await asyncio.sleep(0.01)

    async def post(
        self, body: object, path: str = "/v1/completions"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.send(json.dumps(body).encode(), path)

    async def send(
        self, data: bytes, path: str = "/v1/completions"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data))
        return reader, writer

    async def works(self) -> None:
        """The next request gets its answer."""
        reader, writer = await self.post({"prompt": "abc", "max_tokens": 3})
        assert b'"text":"abc"' in await reader.readuntil(b'"object"')
        await hang_up(writer)


@contextlib.asynccontextmanager
async def serving(step_ms: float = 2.0, max_model_len: int | None = None) -> AsyncIterator[Here]:
    stops = StopRequests()
    ready: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
    listener = bind("127.0.0.1", 0)
    port = int(url_of(listener).rpartition(":")[2])
    choice = ModelChoice(engine="faulty", options={"step_ms": step_ms}, max_model_len=max_model_len)
    running = asyncio.create_task(
        serve(
            listener, choice, ConnectConfig(), ServerConfig(), stops=stops,
            on_serving=lambda url, service: ready.set_result(service),
        )
    )  # fmt: skip
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    here = Here(await ready, port)
    try:
        yield here
    finally:
        for writer in here.writers:
            await hang_up(writer)
        stops.ask()
        assert await running is ExitCode.STOPPED


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN, as from a caller that was killed."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await hang_up(writer)


async def half_close(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


LEAVE: list[Callable[[asyncio.StreamWriter], Awaitable[None]]] = [hang_up, reset, half_close]


@pytest.mark.cases
@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_who_leaves_is_served_no_longer(
    leave: Callable[[asyncio.StreamWriter], Awaitable[None]], stream: bool
) -> None:
    """FC-11: after the first token, or while waiting for the whole answer."""

    async def test() -> None:
        async with serving() as here:
            reader, writer = await here.post({**ENDLESS, "stream": stream, "n": 2})
            if stream:
                await reader.readuntil(b"data: ")
            else:
                await until_async(lambda: here.service.busy == 1)
                while await here.live() < 2:
                    pass
            await leave(writer)
            await here.all_gone(within=1.5)
            await hang_up(writer)
            await here.works()

    asyncio.run(test())


@pytest.mark.cases
def test_a_caller_who_leaves_before_the_first_token() -> None:
    """FC-11 and FC-15: the engine is in a long step."""

    async def test() -> None:
        async with serving(step_ms=300) as here:
            _, writer = await here.post({**ENDLESS, "stream": True})
            await until_async(lambda: here.service.busy == 1)
            await hang_up(writer)
            await here.all_gone(within=1.5)
            await here.works()

    asyncio.run(test())


@pytest.mark.cases
def test_a_hundred_callers_leave_at_once() -> None:
    """FC-11."""

    async def test() -> None:
        async with serving() as here:
            connections = [await here.post({**ENDLESS, "stream": True}) for _ in range(100)]
            for reader, _ in connections:
                await reader.readuntil(b"data: ")
            await asyncio.gather(*(hang_up(writer) for _, writer in connections))
            await here.all_gone(within=3)
            await here.works()

    asyncio.run(test())


@pytest.mark.cases
@pytest.mark.timeout(300)
def test_callers_leave_at_random_moments() -> None:
    """FC-10 and FC-15 over HTTP: also while the request is still being sent."""
    random.seed(7)

    async def one(here: Here) -> None:
        body = {**ENDLESS, "stream": random.random() < 0.5, "n": random.choice((1, 3))}
        _, writer = await here.post(body, random.choice(("/v1/completions", "/v1/completions", "/nothing")))
        await asyncio.sleep(random.random() * 0.02)
        await random.choice(LEAVE[:2])(writer)

    async def test() -> None:
        async with serving() as here:
            for _ in range(count(10, 200)):
                await asyncio.gather(*(one(here) for _ in range(50)))
            await here.all_gone(within=5)
            await here.works()

    asyncio.run(test())


@pytest.mark.cases
@pytest.mark.timeout(300)
def test_cancelled_at_any_await_point() -> None:
    """FC-10 and FC-15 for users of AsyncLLM: cancelled after any number of turns of the loop, the submit included."""
    random.seed(8)

    async def ask(here: Here) -> None:
        async for _ in here.service.llm.generate("abc", SamplingParams(max_tokens=30_000, n=random.choice((1, 2)))):
            pass

    async def one(here: Here) -> None:
        task = asyncio.create_task(ask(here))
        for _ in range(random.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test() -> None:
        async with serving() as here:
            for _ in range(count(10, 200)):
                await asyncio.gather(*(one(here) for _ in range(50)))
            await here.all_gone(within=5)
            await here.works()

    asyncio.run(test())


def test_a_stream_that_is_dropped_half_way_is_aborted() -> None:
    async def test() -> None:
        async with serving() as here:
            async for output in here.service.llm.generate("abc", SamplingParams(max_tokens=30_000, n=2)):
                if len(output.outputs[1].token_ids) > 3:
                    break
            await here.all_gone(within=1.5)

    asyncio.run(test())


def test_faults_of_one_request_are_its_own() -> None:
    """FC-07: raising while it is prepared, in a step, or while its output is made ends that request, next to others."""

    async def test() -> None:
        async with serving() as here:
            others = [await here.post({"prompt": "abc", "max_tokens": 30}) for _ in range(50)]
            llm = here.service.llm
            for fault in ("preprocess:refuse", "preprocess:raise", "add:raise", "step:refuse", "output:garble"):
                params = SamplingParams(max_tokens=5, extra_args={"fault": fault})
                with pytest.raises(Exception, match=r"refus|fault|cannot be sent"):
                    async for _ in llm.generate("abc", params):
                        pass
            for reader, writer in others:
                assert b'"finish_reason":"length"' in await reader.readuntil(b'"object"')
                await hang_up(writer)
            await here.all_gone(within=1.5)

    asyncio.run(test())


@pytest.mark.cases
def test_in_a_thread_that_is_not_the_main_one() -> None:
    """FC-50: no signal handler can be set there; a stop is asked for in other ways."""

    async def test() -> None:
        async with serving() as here:
            await here.works()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, test()).result(30)


@pytest.mark.cases
def test_what_is_far_too_long_holds_nobody_up() -> None:
    """FC-36: other streams go on while absurd prompts and bodies are refused."""
    absurd: list[object] = [
        {"prompt": "x" * 10_000_000},
        {"prompt": [1] * 10_000_000},
        {"prompt": "x" * 3_000_000},
        {"prompt": [1] * 1_000_000},
    ]

    async def gaps(reader: asyncio.StreamReader) -> list[float]:
        times = []
        while True:
            line = await reader.readline()
            if line.startswith(b"data: [DONE]"):
                return [later - earlier for earlier, later in pairwise(times)]
            if line.startswith(b"data: "):
                times.append(time.monotonic())

    async def test() -> None:
        async with serving(step_ms=10, max_model_len=4096) as here:
            bodies = [json.dumps(body).encode() for body in absurd]
            reader, _ = await here.post({"prompt": "abc", "max_tokens": 200, "stream": True})
            watching = asyncio.create_task(gaps(reader))
            for body in bodies:
                answer, _ = await here.send(body)
                assert (await answer.readline()).split()[1] in (b"400", b"413")
            assert max(await watching) < (0.25 if FULL else 1.0)  # 0.1 s, and what a busy machine adds

    asyncio.run(test())
