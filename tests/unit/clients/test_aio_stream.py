"""A stream for one asyncio reader: nothing lost, nothing twice, and a lost reader is noticed at once."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine

import pytest

from muro.clients.aio_stream import MERGE_FROM, AsyncStream, Feed
from muro.clients.attempt import Attempt
from muro.clients.engine import KnownEngine
from muro.errors import EngineDeadError, InvalidRequestError, SlowReaderError, UsageError
from muro.ids import EngineRank, RequestId, WireId
from muro.wire.output import EngineCoreOutput, FinishReason, OutputError
from tests.support.asking import output

STOP = FinishReason.STOP


class Owner:
    def __init__(self) -> None:
        self.gone: list[Attempt] = []

    def reader_gone(self, attempt: Attempt) -> None:
        self.gone.append(attempt)


class Reading:
    """A stream, what fills it, and who is told when its reader is gone."""

    def __init__(self, most: int | None = None) -> None:
        self.owner, self.feed = Owner(), Feed(most)
        attempt = Attempt(RequestId("a"), WireId("a-1"), KnownEngine(EngineRank(0)), self.feed)
        self.stream = AsyncStream(self.owner, attempt, self.feed, asyncio.get_running_loop())

    def lose(self) -> None:
        del self.stream


def in_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


async def collect(stream: AsyncStream) -> list[EngineCoreOutput]:
    return [item async for item in stream]


@in_loop
async def test_outputs_that_wait_come_without_a_turn_of_the_loop() -> None:
    reading = Reading()
    for item in (output("a", 1), output("a", 2), output("a", finish=STOP)):
        reading.feed.put(item)
    turns = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    assert len(await collect(reading.stream)) == 3
    assert not turns and not reading.owner.gone
    assert await collect(reading.stream) == []


@in_loop
async def test_a_reader_that_waits_is_woken() -> None:
    reading = Reading()
    task = asyncio.create_task(collect(reading.stream))
    for item in (output("a", 1), output("a", 2, finish=STOP)):
        await asyncio.sleep(0)
        reading.feed.put(item)
    assert [o.new_token_ids for o in await task] == [[1], [2]]


@in_loop
async def test_an_error_comes_after_what_had_come_before() -> None:
    reading = Reading()
    reading.feed.put(output("a", 1))
    reading.feed.fail(EngineDeadError("gone"))
    assert (await anext(reading.stream)).new_token_ids == [1]
    with pytest.raises(EngineDeadError):
        await anext(reading.stream)
    with pytest.raises(StopAsyncIteration):
        await anext(reading.stream)
    assert not reading.owner.gone


@in_loop
async def test_a_reader_that_waits_gets_the_error() -> None:
    reading = Reading()
    task = asyncio.create_task(collect(reading.stream))
    await asyncio.sleep(0)
    reading.feed.fail(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError):
        await task


@in_loop
async def test_a_finish_with_error_is_raised_and_one_with_abort_is_not() -> None:
    wrong = Reading()
    item = output("a", finish=FinishReason.ERROR)
    item.error = OutputError("validation_error", "no such thing")
    wrong.feed.put(item)
    with pytest.raises(InvalidRequestError, match="no such thing"):
        await anext(wrong.stream)
    aborted = Reading()
    aborted.feed.put(output("a", finish=FinishReason.ABORT))
    assert (await anext(aborted.stream)).finish_reason == FinishReason.ABORT
    assert not wrong.owner.gone and not aborted.owner.gone


@in_loop
async def test_cancelling_a_reader_ends_the_stream() -> None:
    reading = Reading()
    task = asyncio.create_task(collect(reading.stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(reading.owner.gone) == 1
    reading.feed.put(output("a", 1))
    assert await collect(reading.stream) == []
    assert len(reading.owner.gone) == 1


@in_loop
async def test_cancelling_a_reader_that_was_just_woken_ends_the_stream_too() -> None:
    reading = Reading()
    task = asyncio.create_task(collect(reading.stream))
    await asyncio.sleep(0)
    reading.feed.put(output("a", 1))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(reading.owner.gone) == 1


@in_loop
async def test_breaking_out_tells_the_owner_without_a_turn_of_the_loop() -> None:
    reading = Reading()
    reading.feed.put(output("a", 1))
    stream = reading.stream
    reading.lose()
    async for _ in stream:
        break
    del stream
    assert len(reading.owner.gone) == 1


@in_loop
async def test_a_stream_that_was_never_read_tells_too() -> None:
    reading = Reading()
    reading.lose()
    assert len(reading.owner.gone) == 1


@in_loop
async def test_the_collector_may_find_it_in_another_thread() -> None:
    reading = Reading()
    circle = [reading.stream]
    circle.append(circle)  # type: ignore[arg-type]
    reading.lose()
    del circle
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join()
    assert len(reading.owner.gone) == 1


@in_loop
async def test_closing_tells_once_and_ends_a_reader_that_waits() -> None:
    reading = Reading()
    task = asyncio.create_task(collect(reading.stream))
    await asyncio.sleep(0)
    await reading.stream.aclose()
    await reading.stream.aclose()
    assert await task == []
    assert len(reading.owner.gone) == 1


@in_loop
async def test_two_readers_are_refused() -> None:
    reading = Reading()
    task = asyncio.create_task(collect(reading.stream))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="another task"):
        await anext(reading.stream)
    reading.feed.put(output("a", 1, finish=STOP))
    assert len(await task) == 1


@in_loop
async def test_for_a_reader_far_behind_outputs_are_merged_and_none_is_lost() -> None:
    reading = Reading()
    for token in range(1000):
        reading.feed.put(output("a", token))
    reading.feed.put(output("a", 1000, finish=STOP))
    assert len(reading.feed.outputs) == MERGE_FROM + 1
    got = await collect(reading.stream)
    assert [token for item in got for token in item.new_token_ids] == list(range(1001))
    assert got[-1].finish_reason == STOP


@in_loop
async def test_a_reader_too_far_behind_loses_its_request_but_not_what_came_before() -> None:
    reading = Reading(100)
    overruns: list[int] = []
    reading.feed.on_overrun = lambda: overruns.append(1)
    for token in range(1000):
        reading.feed.put(output("a", token))
    assert overruns == [1]
    assert sum(len(item.new_token_ids) for item in reading.feed.outputs) < 200
    got = []
    with pytest.raises(SlowReaderError, match="100 tokens behind"):
        async for item in reading.stream:
            got += item.new_token_ids
    assert got == list(range(len(got)))
    assert len(got) >= 100


@in_loop
async def test_outputs_that_cannot_be_merged_are_bounded_as_well() -> None:
    reading = Reading(100)
    for token in range(1000):
        news = output("a", token)
        news.num_nans_in_logits = 1
        reading.feed.put(news)
    assert len(reading.feed.outputs) <= 101
