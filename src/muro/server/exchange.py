"""One HTTP request and its answer, over ASGI: the body within its limit, replies, event streams, a caller who leaves.

Nothing is sent before there is something to say, so that whatever goes wrong until then still gets its own status.
An answer is written by the task that handles the request; one more task per request waits for the caller to leave
and then cancels the first, which takes that as the end and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from muro.errors import BodyTooLargeError, InvalidRequestError, SlowBodyError
from muro.server import sse
from muro.server.errors import ErrorReply

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_REQUEST_ID = 256
JSON = "application/json"

_LINGER_SECONDS = 2.0
"""How long the rest of a body that is too large is read and thrown away: a caller who is still sending when the
connection closes would see a reset instead of the answer."""

_LINGER = {BodyTooLargeError.status, SlowBodyError.status}

_encode = msgspec.json.Encoder().encode


class BodyBounds(msgspec.Struct, frozen=True):
    """What a body may be: bytes; values (counted by the commas between them, which is what makes JSON slow to read
    and large in memory, far beyond its bytes); seconds until it is complete."""

    size: int
    values: int
    seconds: float


def request_id_of(given: bytes) -> str:
    """The value of `X-Request-Id` if it can be one, else an id of our own."""
    text = given.decode("latin-1")
    return text if 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable() else uuid.uuid4().hex


class GoneError(Exception):
    """The caller has left: before its body was complete, or while it was answered."""


class Exchange:
    """One request. Its handler calls `reply` once, or `stream` any number of times and then `end`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.began = time.monotonic()
        self.started = False
        """Whether the status line is out."""
        self._receive = receive
        self._raw_send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = request_id_of(self._headers.get(b"x-request-id", b""))
        """The caller's word for this request, or ours if that cannot be one."""

    def check_request_id(self) -> None:
        """Raises InvalidRequestError for an `X-Request-Id` that cannot be one."""
        given = self._headers.get(b"x-request-id", b"")
        if given and self.request_id != given.decode("latin-1"):
            raise InvalidRequestError(f"X-Request-Id must be at most {MAX_REQUEST_ID} printable ASCII characters")

    def header(self, name: bytes) -> str | None:
        """A header's value; `name` in lower case."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self, bounds: BodyBounds, hold: Callable[[int], None] = lambda size: None) -> bytes:
        """The whole body. `hold` is told how many bytes of it have come, and may raise.

        Raises BodyTooLargeError as soon as it is known to be, SlowBodyError, GoneError.
        """
        declared = self._headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > bounds.size:
            raise _too_large(bounds)
        try:
            async with asyncio.timeout(bounds.seconds):
                return await self._whole_body(bounds, hold)
        except TimeoutError:
            raise SlowBodyError(f"the body did not arrive within {bounds.seconds:g} s") from None

    async def _whole_body(self, bounds: BodyBounds, hold: Callable[[int], None]) -> bytes:
        body, values = bytearray(), 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            part = message.get("body", b"")
            values += part.count(b",")
            if len(body) + len(part) > bounds.size or values > bounds.values:
                raise _too_large(bounds)
            hold(len(body) + len(part))
            if not message.get("more_body", False):
                return bytes(body + part) if body else bytes(part)
            body += part

    async def reply(self, status: int, body: bytes, headers: Mapping[str, str], *, linger: bool = False) -> None:
        """Answer at once. `linger`: read on for a while what the caller still sends, then close the connection."""
        extra = {**headers, "content-length": str(len(body)), **({"connection": "close"} if linger else {})}
        await self._start(status, extra)
        await self._send({"type": "http.response.body", "body": body, "more_body": linger})
        if linger:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    while (message := await self._receive())["type"] == "http.request" and message.get("more_body"):
                        pass
            await self._send({"type": "http.response.body", "body": b""})

    async def reply_json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON."""
        await self.reply(status, _encode(value), {"content-type": JSON, **(headers or {})})

    async def reply_error(self, error: ErrorReply) -> None:
        """Answer with an error."""
        headers = {"content-type": JSON, **error.headers}
        await self.reply(error.status, _encode(error.body), headers, linger=error.status in _LINGER)

    async def stream(self, events: bytes) -> None:
        """Send events; waits while the caller reads too slowly."""
        if not self.started:
            await self._start(200, sse.HEADERS)
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        """Send the last events."""
        if not self.started:
            await self._start(200, sse.HEADERS)
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    @contextlib.asynccontextmanager
    async def while_connected(self) -> AsyncIterator[None]:
        """End the block quietly when the caller leaves; to be entered after the body has been read."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        before = task.cancelling()
        left = False

        async def watch() -> None:
            nonlocal left
            while (await self._receive())["type"] != "http.disconnect":
                pass
            left = True
            task.cancel()

        watcher = asyncio.get_running_loop().create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            # Somebody else may want the task to end as well: then that counts.
            if not left or task.uncancel() > before:
                raise
        finally:
            watcher.cancel()

    async def _send(self, message: Message) -> None:
        """Raises GoneError if the connection has closed."""
        try:
            await self._raw_send(message)
        except (OSError, RuntimeError) as error:
            # A server drops what it is told after a caller has left; but until it knows, the transport below refuses.
            if isinstance(error, OSError) or "closed" in str(error):
                raise GoneError from error
            raise

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        named.append((b"x-request-id", self.request_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": named})


def _too_large(bounds: BodyBounds) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {bounds.size} bytes, or holds more than {bounds.values} values")
