"""Round trips through the wall: a utility call, and a request that is done after one token; sync and async.

One at a time, with nothing else going on: what is measured is latency. A probe keeps its samples (seconds).
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from muro.bench.floors import METHOD
from muro.clients.interface import AsyncEngineCoreClient, EngineCoreClient
from muro.wire.request import EngineCoreRequest, SamplingParams


def one_token_request(number: int) -> EngineCoreRequest:
    """A short prompt and one token of answer."""
    return EngineCoreRequest(
        request_id=f"one-{number}",
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(max_tokens=1),
        arrival_time=0.0,
    )


class SyncRoundTrips:
    """Over a `SyncMPClient`."""

    def __init__(self, client: EngineCoreClient) -> None:
        self._client = client
        self._sent = 0
        self.utility: list[float] = []
        self.add_to_finish: list[float] = []

    def call(self, rounds: int) -> None:
        """Utility calls."""
        call, samples = self._client.call, self.utility
        for _ in range(rounds):
            start = perf_counter()
            call(METHOD)
            samples.append(perf_counter() - start)

    def finish(self, rounds: int) -> None:
        """ADD until the finishing output is in the caller's hands."""
        client, samples = self._client, self.add_to_finish
        for _ in range(rounds):
            self._sent += 1
            request = one_token_request(self._sent)
            start = perf_counter()
            client.add_request(request)
            while not client.get_outputs().outputs:
                pass
            samples.append(perf_counter() - start)


class AsyncRoundTrips:
    """Over an `AsyncMPClient` of `loop`, which runs while a method does."""

    def __init__(self, client: AsyncEngineCoreClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._sent = 0
        self.utility: list[float] = []
        self.add_to_finish: list[float] = []

    def call(self, rounds: int) -> None:
        """Utility calls."""
        self._loop.run_until_complete(self._call(rounds))

    def finish(self, rounds: int) -> None:
        """ADD until the finishing output is in the caller's hands."""
        self._loop.run_until_complete(self._finish(rounds))

    async def _call(self, rounds: int) -> None:
        for _ in range(rounds):
            start = perf_counter()
            await self._client.call(METHOD)
            self.utility.append(perf_counter() - start)

    async def _finish(self, rounds: int) -> None:
        for _ in range(rounds):
            self._sent += 1
            request = one_token_request(self._sent)
            start = perf_counter()
            async for _ in self._client.generate(request):
                pass
            self.add_to_finish.append(perf_counter() - start)
