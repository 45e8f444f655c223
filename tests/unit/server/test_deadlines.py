"""deadlines.py: what callers may say, what counts, and what happens when time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from muro.errors import DeadlineError, InvalidRequestError
from muro.server.deadlines import Deadlines, Timeouts, parse_timeouts
from muro.server.limits import HttpLimits


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30", Timeouts(total=30)),
        (" 0.5 ", Timeouts(total=0.5)),
        ("queue=2, first-token=10,total=30", Timeouts(queue=2, first_token=10, total=30)),
        ("first_token = 1", Timeouts(first_token=1)),
    ],
)
def test_the_header(text: str, meant: Timeouts) -> None:
    assert parse_timeouts(text) == meant


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "end=1", "=1", "total=", "1,,2", "total=1;queue=2"])
def test_a_header_that_says_nothing(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="X-Request-Timeout must be seconds"):
        parse_timeouts(text)


@pytest.mark.parametrize("body", [{"total": 0}, {"total": -1}, {"end": 1}, {"queue": "x"}])
def test_a_body_that_says_nothing(body: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, Timeouts)


def test_the_shorter_one_counts_and_defaults_hold_where_nothing_is_asked() -> None:
    limits = HttpLimits(queue_timeout=5, first_token_timeout=6, request_timeout=7, max_request_timeout=100)
    deadlines = Deadlines(limits, 10.0, lambda: 11.0)
    assert (deadlines.queue, deadlines.first_token, deadlines.total) == (4, 6, 7)
    deadlines.ask(Timeouts(total=50, first_token=2))
    deadlines.ask(Timeouts(total=60, first_token=3, queue=9))
    assert (deadlines.queue, deadlines.first_token, deadlines.total) == (8, 2, 50)
    longer = Deadlines(limits, 10.0)
    longer.ask(Timeouts(total=500))
    assert longer.total == 100
    assert Deadlines(HttpLimits(max_request_timeout=100), 0.0).total == 100
    assert Deadlines(HttpLimits(), 0.0).total is None


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def never() -> None:
    await asyncio.Event().wait()


def asked(**timeouts: float) -> Deadlines:
    deadlines = Deadlines(HttpLimits(), time.monotonic())
    deadlines.ask(Timeouts(**timeouts))
    return deadlines


@pytest.mark.parametrize(
    ("timeouts", "words"),
    [
        ({"total": 0.02}, "not done within 0.02 s"),
        ({"first_token": 0.02}, "no token within 0.02 s"),
        ({"first_token": 0.02, "total": 5.0}, "no token"),
        ({"first_token": 5.0, "total": 0.02}, "not done"),
    ],
)
def test_time_is_up(timeouts: dict[str, float], words: str) -> None:
    async def test() -> None:
        with pytest.raises(DeadlineError, match=words):
            async with asked(**timeouts).enforced():
                await never()

    run(test)


def test_after_the_first_token_only_the_end_counts() -> None:
    async def test() -> None:
        deadlines = asked(first_token=0.02, total=0.1)
        with pytest.raises(DeadlineError, match=r"not done within 0\.1 s"):
            async with deadlines.enforced():
                deadlines.begin()
                await never()

    run(test)


def test_time_counts_from_the_arrival_over_all_stages() -> None:
    async def test() -> None:
        deadlines = Deadlines(HttpLimits(), time.monotonic() - 10)
        deadlines.ask(Timeouts(total=11))
        async with deadlines.enforced():
            pass
        deadlines.ask(Timeouts(total=9))
        with pytest.raises(DeadlineError):
            async with deadlines.enforced():
                await never()

    run(test)


def test_asked_for_while_it_runs() -> None:
    async def test() -> None:
        deadlines = asked(total=100)
        with pytest.raises(DeadlineError, match=r"0\.02"):
            async with deadlines.enforced():
                deadlines.ask(Timeouts(total=0.02))
                await never()

    run(test)


def test_other_timeouts_and_cancellations_pass() -> None:
    async def test() -> None:
        with pytest.raises(TimeoutError):
            async with asked(total=9).enforced():
                raise TimeoutError
        task = asyncio.create_task(never())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asked(total=9).enforced():
                await task

    run(test)
