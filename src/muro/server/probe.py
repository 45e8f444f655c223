"""The deep probe: one token from every engine that serves, to see that the whole road works.

At most one is under way; whoever asks meanwhile gets its result. It is bounded in time, and whatever has not ended by
then is aborted. An engine that is busy is not taken for one that is stuck: what counts then is that it makes steps.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import msgspec

from muro.clients.interface import EngineStatus
from muro.errors import MuroError
from muro.llm.aio import AsyncLLM
from muro.wire.request import EngineCoreRequest, SamplingParams

SECONDS = 5.0

_TOKEN = 0
"""Every vocabulary has it."""


class Probed(msgspec.Struct, kw_only=True):
    """One engine: `result` is "token", "busy" (no token in time, but steps) or "failed"; then `error` says how."""

    rank: int
    result: str
    seconds: float
    error: str | None = None


class DeepProbe:
    """The probe of one model."""

    def __init__(self, llm: AsyncLLM, seconds: float = SECONDS) -> None:
        self._llm = llm
        self._seconds = seconds
        self._numbers = itertools.count()
        self._running: asyncio.Task[list[Probed]] | None = None

    async def __call__(self) -> list[Probed]:
        """Probe, or wait for the probe that is under way; one result per engine that serves."""
        if self._running is None:
            self._running = asyncio.create_task(self._probe_all())
            self._running.add_done_callback(self._over)
        return await asyncio.shield(self._running)

    def _over(self, task: asyncio.Task[list[Probed]]) -> None:
        self._running = None

    async def _probe_all(self) -> list[Probed]:
        serving = [status for status in self._llm.engines() if status.state == "serving"]
        return list(await asyncio.gather(*map(self._probe, serving)))

    async def _probe(self, before: EngineStatus) -> Probed:
        began, error = time.monotonic(), ""
        try:
            async with asyncio.timeout(self._seconds):
                await self._one_token(before.rank)
            result = "token"
        except TimeoutError:
            result = "busy" if self._steps(before.rank) > _steps_of(before) else "failed"
            error = f"no token within {self._seconds:g} s{self._phase(before.rank)}"
        except MuroError as failure:
            result, error = "failed", failure.message
        return Probed(rank=before.rank, result=result, seconds=time.monotonic() - began, error=error or None)

    async def _one_token(self, rank: int) -> None:
        request = EngineCoreRequest(
            request_id=f"probe-{next(self._numbers)}",
            prompt_token_ids=[_TOKEN],
            sampling_params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
            data_parallel_rank=rank,
        )
        stream = self._llm.client.generate(request)
        try:
            async for _ in stream:
                pass
        finally:
            await stream.aclose()

    def _steps(self, rank: int) -> int:
        return next((_steps_of(status) for status in self._llm.engines() if status.rank == rank), 0)

    def _phase(self, rank: int) -> str:
        """What keeps an engine from working although it serves, such as a pause, in words to go on with."""
        pages = [status.progress for status in self._llm.engines() if status.rank == rank]
        return f"; its phase is {page.phase!r}" if pages and (page := pages[0]) and page.phase != "serving" else ""


def _steps_of(status: EngineStatus) -> int:
    return 0 if status.progress is None else status.progress.steps_ended
