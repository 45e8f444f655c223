"""One keep-alive HTTP/1.1 connection of the load generator: sends a request, times what comes back.

Written for speed, not for the web: of an answer it reads the status, how its body ends, and how many events came when.
A real parser would cost more per event than the servers that are measured.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Callable

import msgspec

_CHUNKED_END = b"\r\n0\r\n\r\n"
_TAIL = 2048
"""Bytes of an answer that are kept for the end: the usage, or an error."""
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')
_ERROR = re.compile(rb'\{"error":[^\r\n]*')
"""An error as it stands in a body, or in an event between the frames of a chunked one."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Answer(msgspec.Struct):
    """What one request got. Times in seconds on the connection's clock."""

    sent: float
    first: float = 0.0
    """When the first event (streamed) or byte of the body came."""
    last: float = 0.0
    status: int = 0
    events: int = 0
    tokens: int = 0
    """As the server counts them."""
    prompt_tokens: int = 0
    """Likewise."""
    error: str = ""


class Connection(asyncio.Protocol):
    """See the module. One request at a time.

    Args:
        clock: seconds.
        gaps: where the time between two events goes; events that come in one read are 0 apart.
    """

    def __init__(self, clock: Callable[[], float], gaps: array[float]) -> None:
        self._clock = clock
        self._gaps = gaps
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Answer] | None = None
        self._answer = Answer(0.0)
        self._head: bytes | None = b""
        self._left: int | None = None
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._finish(f"the connection was closed: {exc or 'by the server'}")

    @property
    def alive(self) -> bool:
        """Whether it can take another request."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def request(self, data: bytes) -> asyncio.Future[Answer]:
        """Send a whole request; the future never fails."""
        self._done = asyncio.get_running_loop().create_future()
        self._head, self._left, self._tail = b"", None, b""
        self._answer = Answer(self._clock())
        done = self._done
        if self._transport is None:
            self._finish("not connected")
        else:
            self._transport.write(data)
        return done

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if self._head is not None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data, self._head = self._head[: end + 2], self._head[end + 4 :], None
            answer.status = int(head[9:12])
            length = _LENGTH.search(head)
            self._left = int(length[1]) if length else None
            self._tail = b"\r\n"
            if not data and self._left != 0:
                return
        now = self._clock()
        seen = self._tail[-5:] + data  # an event's beginning may be cut in two
        events = seen.count(b"data: ")
        if events:
            if answer.events:
                self._gaps.append(now - answer.last)
            else:
                answer.first = now
            if events > 1:
                self._gaps.extend([0.0] * (events - 1))
            answer.events += events
        elif not answer.first:
            answer.first = now
        answer.last = now
        self._tail = (self._tail + data)[-_TAIL:]
        if self._left is None:
            if self._tail.endswith(_CHUNKED_END):
                self._finish()
        else:
            self._left -= len(data)
            if self._left <= 0:
                self._finish()

    def _finish(self, error: str = "") -> None:
        done, self._done = self._done, None
        if done is None or done.done():
            return
        answer = self._answer
        usage = _USAGE.search(self._tail)
        answer.tokens = int(usage[1]) if usage else 0
        prompt = _PROMPT.search(self._tail)
        answer.prompt_tokens = int(prompt[1]) if prompt else 0
        if error:
            answer.error = error
        elif answer.status != 200 or b'"error":' in self._tail:
            found = _ERROR.search(self._tail)
            told = found[0] if found else self._tail[-500:]
            answer.error = f"status {answer.status}: {told.decode(errors='replace').strip()}"
        done.set_result(answer)
