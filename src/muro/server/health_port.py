"""Health on a port of its own: however many callers crowd the main port, whoever starts and stops us gets an answer.

The event loop writes down how things are, several times a second; a thread hands that out and looks at nothing else.
So an answer is at most as old as the loop was busy, says how old it is, and costs the loop nothing. Invariants:

- What is shared is one immutable `Told`, replaced as a whole.
- A loop that has not turned for `STUCK` seconds is dead for its callers: then `/livez` turns bad, too.
- At most `MOST` callers at once, each for `PATIENCE` seconds in all, however it spends them; more are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec

from muro.server.health import Health

LOOK = 0.2
"""Seconds between two looks at how things are."""
STUCK = 10.0
MOST = 32
PATIENCE = 2.0
_SWITCH_INTERVAL = 0.001
"""Seconds after which a busy event loop lets the thread go on: five of Python's default would be most of an answer."""


class Told(msgspec.Struct, frozen=True):
    """What the loop wrote down; `at` on the monotonic clock."""

    reason: str | None
    body: bytes
    at: float


STARTING = "the server is starting"


class HealthPort:
    """Answers `GET /livez`, `/readyz` and `/health` in a thread of its own, from `open` to `close`.

    Args:
        listener: a bound socket; closed by `close`.
        clock: seconds, monotonic.
    """

    def __init__(self, listener: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._listener = listener
        self._clock = clock
        self._told = Told(STARTING, msgspec.json.encode({"status": "unavailable", "reason": STARTING}), clock())
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._keeping: asyncio.Task[None] | None = None

    def open(self) -> HealthPort:
        """Begin to answer; until `keep` is called, that the server is starting."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # see `lifespan.bind`
        self._listener.setblocking(False)  # several servers may listen with it, and another one be faster
        self._listener.listen(128)
        self._server = _Server(self._listener, self.answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="muro-health", daemon=True)
        self._thread.start()
        return self

    @property
    def url(self) -> str:
        """Where it can be reached."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def keep(self, look: Callable[[], Health]) -> None:
        """From now on look how things are, in the running loop."""

        async def keep() -> None:
            while True:
                found = look()
                self._told = Told(found.reason, msgspec.json.encode(found), self._clock())
                await asyncio.sleep(LOOK)

        self._keeping = asyncio.get_running_loop().create_task(keep())

    def close(self) -> None:
        """Stop answering."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        self._listener.close()

    def answer(self, path: str) -> tuple[int, bytes, float]:
        """Status, body and age in seconds for a path (any thread)."""
        told = self._told
        age = max(0.0, self._clock() - told.at)
        stuck = self._keeping is not None and age > STUCK
        reason = f"the server has been busy with something else for {age:.0f} s" if stuck else told.reason
        match path.partition("?")[0]:
            case "/livez":
                reason = reason if stuck else None
            case "/health" if not stuck:
                return 200 if reason is None else 503, told.body + b"\n", age
            case "/readyz" | "/health":
                pass
            case _:
                return 404, b"here are /livez, /readyz and /health\n", age
        return 200 if reason is None else 503, f"{reason or 'ok'}\n".encode(), age


class _Server(http.server.ThreadingHTTPServer):
    """The standard library's server on a socket that is bound already, for few callers at once."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, answer: Callable[[str], tuple[int, bytes, float]]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.answer = answer
        self._until: dict[socket.socket, float] = {}
        """The callers that are inside, and when each has to be gone."""

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._until) >= MOST:
            self.shutdown_request(request)
            return
        self._until[request] = time.monotonic() + PATIENCE
        try:
            super().process_request(request, client_address)
        except BaseException:  # there can be no more threads
            del self._until[request]
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._until[request]

    def service_actions(self) -> None:
        """Wake the threads of callers whose time is up (called at least twice a second)."""
        now = time.monotonic()
        for caller in [caller for caller, until in self._until.copy().items() if until <= now]:
            with contextlib.suppress(OSError):  # it has just left
                caller.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        status, body, age = self.server.answer(self.path)
        text = body[:1] != b"{"
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: {'text/plain; charset=utf-8' if text else 'application/json'}\r\n"
            f"content-length: {len(body)}\r\nage: {age:.0f}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.close_connection = True
        self.wfile.write(head.encode() + (body if self.command == "GET" else b""))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a probe every second is no news."""
