"""exchange.py: one request over hand-made ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from muro.errors import BodyTooLargeError, InvalidRequestError, OverloadedError, SlowBodyError
from muro.server.errors import reply_to
from muro.server.exchange import BodyBounds, Exchange, GoneError, Message


class Wire:
    """Both directions of one request."""

    def __init__(self, *incoming: Message, headers: dict[bytes, bytes] | None = None) -> None:
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        for message in incoming:
            self.incoming.put_nowait(message)
        self.sent: list[Message] = []
        self.headers = list((headers or {}).items())

    def exchange(self) -> Exchange:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": self.headers}
        return Exchange(scope, self.incoming.get, self._send)

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def sent_headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_body_in_parts() -> None:
    async def test() -> None:
        assert await Wire(part(b"ab", True), part(b""), part(b"c")).exchange().body(BodyBounds(3, 9, 5.0)) == b"ab"
        assert await Wire(part(b"ab", True), part(b"c")).exchange().body(BodyBounds(3, 9, 5.0)) == b"abc"

    run(test)


def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async def test() -> None:
        wire = Wire(part(b"x" * 11), headers={b"content-length": b"11"})
        with pytest.raises(BodyTooLargeError):
            await wire.exchange().body(BodyBounds(10, 9, 5.0))
        assert wire.incoming.qsize() == 1
        endless = Wire(*(part(b"x" * 6, True) for _ in range(5)))
        with pytest.raises(BodyTooLargeError):
            await endless.exchange().body(BodyBounds(10, 9, 5.0))
        assert endless.incoming.qsize() == 3

    run(test)


def test_a_body_of_too_many_values_is_refused_while_it_comes() -> None:
    async def test() -> None:
        wire = Wire(part(b"[1,2,3", True), part(b",4,5,6", True), part(b"]"))
        with pytest.raises(BodyTooLargeError, match="more than 4 values"):
            await wire.exchange().body(BodyBounds(1000, 4, 5.0))
        assert wire.incoming.qsize() == 1

    run(test)


def test_a_body_that_stops_coming() -> None:
    async def test() -> None:
        with pytest.raises(SlowBodyError, match=r"0\.01 s"):
            await Wire(part(b"x", True)).exchange().body(BodyBounds(10, 9, 0.01))

    run(test)


def test_whoever_counts_bodies_is_told_how_they_grow() -> None:
    async def test() -> None:
        told: list[int] = []
        await (
            Wire(part(b"ab", True), part(b"cd", True), part(b"e")).exchange().body(BodyBounds(10, 9, 5.0), told.append)
        )
        assert told == [2, 4, 5]

        def full(size: int) -> None:
            raise OverloadedError("full")

        with pytest.raises(OverloadedError):
            await Wire(part(b"ab", True), part(b"cd")).exchange().body(BodyBounds(10, 9, 5.0), full)

    run(test)


def test_a_caller_who_leaves_before_the_end_of_the_body() -> None:
    async def test() -> None:
        with pytest.raises(GoneError):
            await Wire(part(b"x", True), GONE).exchange().body(BodyBounds(10, 9, 5.0))

    run(test)


def test_a_refused_body_is_drained_after_the_answer() -> None:
    async def test() -> None:
        wire = Wire(part(b"x" * 20, True), part(b"y" * 20, True), part(b"z"))
        exchange = wire.exchange()
        with pytest.raises(BodyTooLargeError) as caught:
            await exchange.body(BodyBounds(10, 9, 5.0))
        await exchange.reply_error(reply_to(caught.value))
        assert wire.sent[0]["status"] == 413
        assert wire.sent_headers()[b"connection"] == b"close"
        assert [message["more_body"] for message in wire.sent[1:2]] == [True]
        assert wire.sent[-1] == {"type": "http.response.body", "body": b""}
        assert wire.incoming.empty()

    run(test)


@pytest.mark.parametrize("given", [b"a" * 257, b"a\tb", b"\xe9", b"\x00"])
def test_a_request_id_that_could_not_go_back(given: bytes) -> None:
    exchange = Wire(headers={b"x-request-id": given}).exchange()
    with pytest.raises(InvalidRequestError, match="X-Request-Id"):
        exchange.check_request_id()
    assert exchange.request_id


def test_a_request_id_goes_back() -> None:
    async def test() -> None:
        wire = Wire(headers={b"x-request-id": b"mine"})
        exchange = wire.exchange()
        exchange.check_request_id()
        await exchange.reply_json(200, {"a": 1})
        assert wire.sent_headers() == {
            b"content-type": b"application/json", b"content-length": b"7", b"x-request-id": b"mine",
        }  # fmt: skip
        assert wire.sent[1]["body"] == b'{"a":1}'

    run(test)


def test_the_block_ends_quietly_when_the_caller_leaves() -> None:
    async def test() -> None:
        wire = Wire()
        reached = []

        async def handler() -> None:
            async with wire.exchange().while_connected():
                reached.append("in")
                await asyncio.Event().wait()
            reached.append("after")
            await asyncio.sleep(0)  # a cancellation that was left over would hit here
            reached.append("end")

        task = asyncio.create_task(handler())
        await asyncio.sleep(0)
        wire.incoming.put_nowait(GONE)
        await task
        assert reached == ["in", "after", "end"]

    run(test)


def test_a_cancellation_by_others_passes() -> None:
    async def test() -> None:
        async def handler() -> None:
            async with Wire().exchange().while_connected():
                await asyncio.Event().wait()

        task = asyncio.create_task(handler())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(test)


def test_an_error_inside_passes_and_nobody_watches_on() -> None:
    async def test() -> None:
        with pytest.raises(ValueError, match="mine"):
            async with Wire().exchange().while_connected():
                raise ValueError("mine")
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    run(test)


@pytest.mark.parametrize("error", [ConnectionResetError(), RuntimeError("the handler is closed")])
def test_a_connection_that_closes_while_it_is_answered(error: Exception) -> None:
    async def test() -> None:
        async def send(message: Message) -> None:
            raise error

        exchange = Exchange({"type": "http", "headers": []}, asyncio.Queue[Message]().get, send)
        with pytest.raises(GoneError):
            await exchange.reply_json(200, {})

    run(test)
