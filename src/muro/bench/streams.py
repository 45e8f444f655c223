"""Tokens per second through the wall with the echo engine, and what they cost on either side.

Every stream gets one token per step, each token is an output object of its own, and no steps are merged: the
worst that an engine can do to its client. The bare generator is the comparison for the asyncio side: the same
outputs, built beforehand, through one `asyncio.Queue` per stream into one async generator per stream, without
any process or socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from time import perf_counter

import msgspec

from muro.clients.interface import AsyncEngineCoreClient, EngineCoreClient, EngineStatus
from muro.errors import InternalError
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest, SamplingParams

MIN_TOKENS = 32
"""Shortest stream, however many there are."""
_LOOK_EVERY = 0.02  # seconds between two looks at the backlog


class Flow(msgspec.Struct):
    """One measurement. CPU in microseconds per token; `backlog`: most tokens the engine was ahead."""

    tokens_per_s: float
    client_cpu_us_per_token: float
    engine_cpu_us_per_token: float
    backlog: int


def stream_requests(streams: int, tokens: int, run: int) -> list[EngineCoreRequest]:
    """Requests that together bring about `tokens` tokens."""
    params = SamplingParams(max_tokens=stream_length(streams, tokens), ignore_eos=True)
    return [
        EngineCoreRequest(
            request_id=f"stream-{run}-{number}", prompt_token_ids=[1000 + number % 1000], sampling_params=params
        )
        for number in range(streams)
    ]


def stream_length(streams: int, tokens: int) -> int:
    """Tokens per stream."""
    return max(MIN_TOKENS, tokens // streams)


class _Meter:
    """Clocks, CPU clocks and the engine's count of tokens around one measurement."""

    def __init__(self, client: EngineCoreClient | AsyncEngineCoreClient) -> None:
        self._client = client
        status = self._status()
        if status.pid is None:
            raise InternalError("the benchmark needs an engine that was started here")
        self._engine_clock = process_clock(status.pid)
        self._sent = status.progress.tokens_out if status.progress else 0
        self._backlog = 0
        self._engine = time.clock_gettime(self._engine_clock)
        self._own = time.process_time()
        self._start = self._looked = perf_counter()

    def look(self, received: int) -> None:
        """Note how far the engine is ahead of what was received; now and then."""
        now = perf_counter()
        if now - self._looked > _LOOK_EVERY:
            self._looked = now
            progress = self._status().progress
            if progress is not None:
                self._backlog = max(self._backlog, progress.tokens_out - self._sent - received)

    def flow(self, tokens: int) -> Flow:
        took = perf_counter() - self._start
        own = time.process_time() - self._own
        engine = time.clock_gettime(self._engine_clock) - self._engine
        return Flow(tokens / took, own / tokens * 1e6, engine / tokens * 1e6, self._backlog)

    def _status(self) -> EngineStatus:
        return self._client.engines()[0]


def process_clock(pid: int) -> int:
    """Number of the CPU clock of a process for `time.clock_gettime` (as clock_getcpuclockid(3) computes it)."""
    return (~pid << 3) | 2


def measure_batches(client: EngineCoreClient, streams: int, tokens: int, run: int) -> Flow:
    """All streams read in batches from one thread."""
    requests = stream_requests(streams, tokens, run)
    meter = _Meter(client)
    for request in requests:
        client.add_request(request)
    received, unfinished = 0, streams
    while unfinished:
        batch = client.get_outputs()
        for output in batch.outputs:
            if output.finish_reason is not None:
                unfinished -= 1
        received += len(batch.outputs)
        meter.look(received)
    expected = streams * stream_length(streams, tokens)
    if received != expected:
        raise InternalError(f"{received} tokens came instead of {expected}")
    return meter.flow(received)


async def measure_generators(client: AsyncEngineCoreClient, streams: int, tokens: int, run: int) -> Flow:
    """Each stream read by a task of its own through its async generator."""
    received = 0

    async def read(request: EngineCoreRequest) -> None:
        nonlocal received
        async for _ in client.generate(request):
            received += 1

    async def look() -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            meter.look(received)

    requests = stream_requests(streams, tokens, run)
    meter = _Meter(client)
    looking = asyncio.ensure_future(look())
    try:
        await asyncio.gather(*(read(request) for request in requests))
    finally:
        looking.cancel()
    expected = streams * stream_length(streams, tokens)
    if received != expected:
        raise InternalError(f"{received} tokens came instead of {expected}")
    return meter.flow(received)


async def measure_bare_generators(streams: int, tokens: int) -> float:
    """Tokens per second of prebuilt outputs through asyncio queues into async generators."""
    length = stream_length(streams, tokens)
    steps = [
        [
            EngineCoreOutput(f"stream-{number}", [7], finish_reason=FinishReason.LENGTH if step == length - 1 else None)
            for number in range(streams)
        ]
        for step in range(length)
    ]
    queues: list[asyncio.Queue[EngineCoreOutput]] = [asyncio.Queue() for _ in range(streams)]

    async def outputs(queue: asyncio.Queue[EngineCoreOutput]) -> AsyncIterator[EngineCoreOutput]:
        while True:
            output = await queue.get()
            yield output
            if output.finish_reason is not None:
                return

    async def read(queue: asyncio.Queue[EngineCoreOutput]) -> int:
        received = 0
        async for _ in outputs(queue):
            received += 1
        return received

    start = perf_counter()
    tasks = [asyncio.ensure_future(read(queue)) for queue in queues]
    for step in steps:
        for queue, output in zip(queues, step, strict=True):
            queue.put_nowait(output)
        await asyncio.sleep(0)
    received = sum(await asyncio.gather(*tasks))
    return received / (perf_counter() - start)
