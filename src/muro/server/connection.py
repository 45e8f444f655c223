"""One connection of a caller, within bounds: how many there are, how long a head may take, when a reader is too slow.

uvicorn has none of these bounds, and no other door for them than its protocol class: `BoundedConnection` derives from
it and adds nothing else. Everything happens in the loop's thread. A timer runs only while there is something to wait
for: the rest of a head that came in parts, the rest of a body whose answer is out, or a reader that has left a full
buffer alone.

A connection above the bound is a *surplus* one: it is let in to ask for health, and its other requests are refused
(see `gate`). Above `RESERVE` of those nobody is let in.

While the queue is full a request is refused here, at the end of its head, before anything is made for it: a crowd of
callers must cost as little as can be, for the engine needs the processor too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from muro.server.limits import HttpLimits

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
RESERVE = 64
SURPLUS = "muro.surplus"
"""Key of the ASGI scope: whether the connection is one too many."""

GENERATING = (b"/v1/completions", b"/v1/chat/completions")
"""Beginnings of the paths that make work."""

_UPGRADE = re.compile(rb"(?i)\r\nupgrade[ \t]*:")
_SEND_BUFFER = 256 << 10
_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 40\r\n"
    b"connection: close\r\n\r\nThe head of the request came too slowly."
)


class Connections:
    """What is counted over all connections of one server, and their bounds."""

    def __init__(self, limits: HttpLimits, most: int) -> None:
        self.limits = limits
        self.most = most
        self.open = 0
        self.refused = 0
        self.slow_heads = 0
        self.malformed = 0
        self.slow_readers = 0
        self.refusal: Callable[[bytes], bytes | None] = lambda request_id: None
        """Asked for each request that generates, by its X-Request-Id: the whole answer if it is refused at once."""

    def protocol(self, **arguments: Any) -> BoundedConnection:
        """A new connection; what uvicorn calls its protocol class."""
        return BoundedConnection(self, **arguments)


def seldom() -> Callable[[logging.LogRecord], bool]:
    """A filter of warnings that lets the 1st, 2nd, 4th, 8th ... through: anybody may bring them about."""
    numbers = itertools.count(1)

    def lets_through(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        if (number := next(numbers)) & (number - 1):
            return False
        if number > 1:
            record.msg = f"{record.msg} ({number} such warnings by now)"
        return True

    return lets_through


log.addFilter(seldom())


def _without_upgrade(data: bytes) -> bytes:
    """A head without the offer of another protocol, which a server may ignore (RFC 9110, 7.8).

    The parser ends a message at a head that has it and loses the body. Java's own client offers HTTP/2 so, always.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest


class BoundedConnection(HttpToolsProtocol):
    """See the module."""

    def __init__(self, shared: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.logger = log
        self._shared = shared
        self._surplus = False
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        self._frame_bytes = 0  # of a chunked body's frame, since the last part of the body itself
        self._refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        shared = self._shared
        shared.open += 1
        super().connection_made(transport)
        if shared.open > shared.most:
            self._surplus = True
            shared.refused += 1
            if shared.open > shared.most + RESERVE:
                transport.abort()
                return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.open -= 1
        self._head_came()
        self._rest_came()
        self._reader_took()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_body:
            self._frame_bytes += len(data)
        super().data_received(data if self._in_body else _without_upgrade(data))
        if self._in_body and self._frame_bytes > MAX_HEAD_BYTES:
            self._refuse_the_rest()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")
            self._await_head()
        elif self._in_body and self._idle:
            self._await_rest()

    def send_400_response(self, msg: str) -> None:
        self._shared.malformed += 1
        super().send_400_response(msg)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        if self._surplus:
            self.scope[SURPLUS] = True  # type: ignore[literal-required] # an extension of ours

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # nobody reads what follows a body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._frame_bytes = 0
        self._head_came()
        self._refused = self._refuse_at_once()
        if not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._frame_bytes = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._rest_came()
        if not self._refused:
            super().on_message_complete()
        else:
            # As after any other answer: the connection stays, for a while.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(self._shared.limits.slow_reader_timeout, self._reader_too_slow)

    def resume_writing(self) -> None:
        self._reader_took()
        super().resume_writing()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle  # there is none before the first one, whatever its type says
        return cycle is None or cycle.response_complete

    def _refuse_at_once(self) -> bool:
        """Whether the request was answered here. Not one that follows another which is still being answered."""
        if not self.url.startswith(GENERATING) or not self._idle:
            return False
        request_id = next((value for name, value in self.headers if name == b"x-request-id"), b"")
        answer = self._shared.refusal(request_id)
        if answer is None:
            return False
        self.transport.write(answer)
        if not self.parser.should_keep_alive():
            self.transport.close()
        return True

    def _refuse_the_rest(self) -> None:
        """What frames a chunked body, or follows it, has become too much."""
        cycle: RequestResponseCycle | None = self.cycle
        if self._refused or (cycle is not None and cycle.response_started):
            self.transport.close()
        elif not self.transport.is_closing():
            self.send_400_response("What frames the body, or follows it, is too large.")

    def _await_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self._shared.limits.head_timeout, self._head_too_slow)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._shared.slow_heads += 1
            if self._head_bytes:
                self.transport.write(_TOO_SLOW)
            self.transport.close()

    def _await_rest(self) -> None:
        if self._rest_timer is None and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(self._shared.limits.body_timeout, self.transport.close)

    def _rest_came(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _reader_took(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _reader_too_slow(self) -> None:
        self._reader_timer = None
        self._shared.slow_readers += 1
        self.transport.abort()


def bound_buffers(listener: socket.socket, slow_reader_timeout: float) -> None:
    """Settings that accepted connections inherit: a bounded send buffer, and an end to callers who have vanished.

    And what remains of them in the kernel for a minute does not keep the next server from the port.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        # Longer than our own patience: whoever is there and does not read shall be counted as such.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(slow_reader_timeout * 2000))
