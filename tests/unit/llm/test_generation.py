"""generation.py: what waits becomes one piece; leaving in any way closes every stream."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from muro.errors import RequestFailedError
from muro.llm.generation import Generation, Line
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.observe.metrics import ChoiceClock, ServingMetrics
from muro.text.tokenizer import ByteTokenizer
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import SamplingParams
from muro.wire.stats import PrefillStats

LENGTH = FinishReason.LENGTH


class Stream:
    """A stream of a client that the test feeds."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[EngineCoreOutput | Exception] = asyncio.Queue()
        self.closed = False

    def put(self, text: str, reason: FinishReason | None = None) -> None:
        self.arrived.put_nowait(EngineCoreOutput("r", list(text.encode()), finish_reason=reason))

    def __aiter__(self) -> AsyncIterator[EngineCoreOutput]:
        return self  # type: ignore[return-value]

    async def __anext__(self) -> EngineCoreOutput:
        output = await self.arrived.get()
        if isinstance(output, Exception):
            raise output
        return output

    def pending(self) -> list[EngineCoreOutput]:
        taken = []
        while not self.arrived.empty():
            output = self.arrived.get_nowait()
            assert isinstance(output, EngineCoreOutput)
            taken.append(output)
        return taken

    async def aclose(self) -> None:
        self.closed = True


class Now:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def generation(
    *streams: Stream, metrics: ServingMetrics | None = None, now: Callable[[], float] | None = None, **params: Any
) -> Generation:
    numbers, clock = metrics or ServingMetrics(), now or Now()
    lines = []
    for index, stream in enumerate(streams):
        choice = Choice(index, f"r-{index}", SamplingParams(**params), ByteTokenizer())
        lines.append(Line(choice, stream, 3, ChoiceClock(numbers, 0.0), clock))
    return Generation("r", [[1, 2, 3]], lines)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def collect(made: Generation) -> list[Piece]:
    return [piece async for piece in made]


def test_what_waits_becomes_one_piece() -> None:
    async def test() -> None:
        stream = Stream()
        made = generation(stream)
        for letter in "abc":
            stream.put(letter)
        assert (await anext(made)).text == "abc"
        stream.put("d")
        stream.put("e", LENGTH)
        assert [(p.text, p.finish_reason) for p in await collect(made)] == [("de", "length")]
        assert (made.usage().prompt_tokens, made.usage().completion_tokens) == (3, 5)

    run(test)


def test_several_choices_end_one_by_one() -> None:
    async def test() -> None:
        streams = [Stream() for _ in range(3)]
        made = generation(*streams)
        for number, stream in enumerate(streams):
            stream.put(str(number), LENGTH)
        pieces = await collect(made)
        assert sorted((piece.index, piece.text) for piece in pieces) == [(0, "0"), (1, "1"), (2, "2")]

    run(test)


def test_a_stop_string_closes_the_stream_at_once() -> None:
    async def test() -> None:
        stream = Stream()
        made = generation(stream, stop="c")
        stream.put("abcdef")
        assert [(p.text, p.finish_reason) for p in await collect(made)] == [("ab", "stop")]
        assert stream.closed

    run(test)


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_ends_it(count: int) -> None:
    async def test() -> None:
        streams = [Stream() for _ in range(count)]
        made = generation(*streams)
        streams[-1].arrived.put_nowait(RequestFailedError("no"))
        with pytest.raises(RequestFailedError, match="no"):
            await collect(made)
        await made.aclose()
        assert all(stream.closed for stream in streams)

    run(test)


@pytest.mark.parametrize("count", [1, 3])
def test_a_cancelled_reader_closes_every_stream(count: int) -> None:
    async def test() -> None:
        streams = [Stream() for _ in range(count)]
        made = generation(*streams)

        async def read() -> None:
            try:
                await collect(made)
            finally:
                await made.aclose()

        task = asyncio.create_task(read())
        streams[0].put("a")
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(stream.closed for stream in streams)
        assert [piece async for piece in made] == []

    run(test)


def test_a_lost_generation_holds_no_stream() -> None:
    async def test() -> None:
        stream = Stream()
        lost = weakref.ref(generation(stream))
        gc.collect()
        assert lost() is None

    run(test)


def test_times_are_written_down() -> None:
    async def test() -> None:
        metrics, stream, now = ServingMetrics(), Stream(), Now()
        made = generation(stream, metrics=metrics, now=now)
        stream.put("a")
        now.time = 1.0
        await anext(made)
        stream.put("bcde", LENGTH)
        now.time = 3.0
        await anext(made)
        assert metrics.generation_tokens == 5
        assert metrics.time_to_first_token.total == 1.0
        assert (sum(metrics.inter_token_latency.counts), metrics.inter_token_latency.total) == (4, 2.0)
        assert metrics.time_per_output_token.total == 0.5
        assert metrics.request_latency.total == 3.0
        assert metrics.finished == {"length": 1}

    run(test)


def test_cached_tokens_count_once_per_prompt() -> None:
    async def test() -> None:
        streams = [Stream() for _ in range(4)]
        made = generation(*streams)
        made.prompts = [[1, 2, 3], [4, 5]]
        assert made.usage().cached_tokens is None
        for cached, stream in zip((2, 3, 1, 0), streams, strict=True):
            stats = PrefillStats(3, 3 - cached, cached, cached)
            stream.arrived.put_nowait(EngineCoreOutput("r", [65], finish_reason=LENGTH, prefill_stats=stats))
        await collect(made)
        assert (made.usage().prompt_tokens, made.usage().cached_tokens) == (5, 3)

    run(test)
