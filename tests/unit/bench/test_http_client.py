"""http_client.py: what it reads of an answer does not depend on how the answer is cut."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from muro.bench.http_client import Answer, Connection

EVENTS = (b'data: {"text":"a"}\n\n', b'data: {"text":"b"}\n\n', b'data: {"usage":{"completion_tokens":2}}\n\n')
CHUNKED = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"
STREAMED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 35\r\n\r\n{"usage":{"completion_tokens": 12}}'


class Transport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads it."""


def answer_to(data: bytes, size: int, *, lost: bool = False) -> tuple[Answer, list[float]]:
    async def read() -> tuple[Answer, list[float]]:
        gaps: array[float] = array("d")
        times = iter(range(10_000))
        connection = Connection(lambda: float(next(times)), gaps)
        connection.connection_made(Transport())
        answer = connection.request(b"")
        for at in range(0, len(data), size):
            connection.data_received(data[at : at + size])
        if lost:
            connection.connection_lost(None)
        assert answer.done()
        return await answer, list(gaps)

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 2, 7, 50, 1000])
def test_a_streamed_answer(size: int) -> None:
    answer, gaps = answer_to(STREAMED, size)
    assert (answer.status, answer.events, answer.tokens, answer.error) == (200, 3, 2, "")
    assert len(gaps) == 2


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_whole_answer(size: int) -> None:
    answer, gaps = answer_to(WHOLE, size)
    assert (answer.status, answer.events, answer.tokens, answer.error) == (200, 0, 12, "")
    assert gaps == []


def test_an_error_is_told() -> None:
    answer, _ = answer_to(b'HTTP/1.1 503 X\r\ncontent-length: 14\r\n\r\n{"error":"no"}', 1000)
    assert "503" in answer.error
    assert "no" in answer.error


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_error_event_is_told_without_the_frames_around_it(size: int) -> None:
    events = (EVENTS[0], b'data: {"error":{"message":"no"}}\n\n', b"data: [DONE]\n\n")
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    answer, _ = answer_to(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body, size)
    assert answer.error == 'status 200: {"error":{"message":"no"}}'


def test_a_connection_that_breaks_off() -> None:
    answer, _ = answer_to(STREAMED[:-30], 1000, lost=True)
    assert "closed" in answer.error
