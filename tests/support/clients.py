"""Every client behind one face, so that the same cases run over all of them.

The face is that of the client for threads. `AsyncFace` runs each step of an asyncio client in a loop that rests in
between; nothing of the client's own is replaced.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from muro import AsyncMPClient, EngineStatus, InprocClient, OutputBatch, SyncMPClient, connect, connect_async
from muro.clients.aio_stream import AsyncStream
from muro.wire import ops
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest

KINDS = ("inproc", "sync", "async")


class AsyncFaceStream:
    def __init__(self, runner: asyncio.Runner, stream: AsyncStream) -> None:
        self._runner = runner
        self._stream = stream

    def __iter__(self) -> Iterator[EngineCoreOutput]:
        return self

    def __next__(self) -> EngineCoreOutput:
        try:
            return self._runner.run(self._next())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        self._runner.run(self._stream.aclose())

    async def _next(self) -> EngineCoreOutput:
        return await anext(self._stream)


class AsyncFace:
    def __init__(self, runner: asyncio.Runner, client: AsyncMPClient) -> None:
        self._runner = runner
        self.client = client

    def generate(self, request: EngineCoreRequest) -> AsyncFaceStream:
        return AsyncFaceStream(self._runner, self._inside(self.client.generate, request))

    def add_request(self, request: EngineCoreRequest) -> None:
        self._inside(self.client.add_request, request)

    def get_outputs(self, timeout: float | None = None) -> OutputBatch:
        return self._runner.run(self.client.get_outputs(timeout))

    def abort(self, request_ids: Iterable[str]) -> None:
        self._inside(self.client.abort, request_ids)

    def call(self, op: Any, *args: Any, timeout: float | None = None, engine: int | None = None) -> Any:
        return self._runner.run(self.client.call(op, *args, timeout=timeout, engine=engine))

    def call_all(self, op: Any, *args: Any, timeout: float | None = None) -> Any:
        return self._runner.run(self.client.call_all(op, *args, timeout=timeout))

    def engines(self) -> list[EngineStatus]:
        return self._inside(self.client.engines)

    def observe_stats(self, listener: Any) -> None:
        self._inside(self.client.observe_stats, listener)

    def check_health(self) -> None:
        self._runner.run(asyncio.sleep(0.001))  # the loop looks at its descriptors
        self._inside(self.client.check_health)

    def close(self, timeout: float | None = None) -> None:
        self._runner.run(self.client.aclose(timeout))

    def _inside(self, function: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            return function(*args)

        return self._runner.run(run())


Face = InprocClient | SyncMPClient | AsyncFace


@contextlib.contextmanager
def opened(kind: str, engine: str, **options: Any) -> Iterator[Face]:
    """A client of one engine, closed afterwards. It has had an answer: so all its connections are there."""
    match kind:
        case "inproc":
            with InprocClient.create(engine, options=options) as client:
                yield client
        case "sync":
            with connect(engine=engine, options=options) as client:
                client.call(ops.IS_SCHEDULER_PAUSED)
                yield client
        case "async":
            with asyncio.Runner() as runner:
                face = AsyncFace(runner, runner.run(connect_async(engine=engine, options=options)))
                try:
                    face.call(ops.IS_SCHEDULER_PAUSED)
                    yield face
                finally:
                    face.close()
