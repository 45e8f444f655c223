"""The sockets of a minimal front-end, and a small HTTP API before it: /v1/models, /v1/completions, /health.

Threads: the main one owns the sockets and the front-end; each HTTP connection has one of its own, which hands over what
its user wants and reads what comes from a queue. SIGTERM ends the process.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from muro.child.signals import StopSignals
from muro.testing.broken.frontend import Asked, FrontendHooks, Gone, MinimalFrontend
from muro.transport.endpoint import parse_address, tcp_endpoint
from muro.transport.pump import Pump
from muro.transport.sockets import Socket, bind_pull, bind_router, bound_address, close, receive_nowait, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.handshake import Addresses

MODEL = "minimal"


class _Reader:
    """Hands what comes for a request to its connection's thread: ("text" | "ended" | "failed", words)."""

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.request_id = ""

    def text(self, piece: str) -> None:
        self.news.put(("text", piece))

    def ended(self, reason: str) -> None:
        self.news.put(("ended", reason))

    def failed(self, why: str) -> None:
        self.news.put(("failed", why))


def run_frontend(address: str, hooks: FrontendHooks, http_port: int = 0) -> int:
    """Bind the handshake at `address`, and HTTP on 127.0.0.1; print the URL; serve. Returns the exit code."""
    with (
        Wakeup() as wake,
        Wakeup() as stop,
        StopSignals(stop.set),  # longer than the directory, which a signal would leave behind
        tempfile.TemporaryDirectory(prefix="muro-") as directory,
    ):
        return _serve(_Shell(address, hooks, wake, stop, directory), http_port)


def _serve(shell: _Shell, http_port: int) -> int:
    http = _Server(("127.0.0.1", http_port), _handler(shell))
    thread = threading.Thread(target=http.serve_forever, name="http", daemon=True)
    thread.start()
    sys.stdout.write(f"http://127.0.0.1:{http.server_address[1]}\n")
    sys.stdout.flush()
    try:
        shell.serve()
        return 0
    except Gone:
        return 10
    finally:
        shell.close()
        http.shutdown()
        http.server_close()


class _Shell:
    """The front-end's sockets. Other threads use `ask`, `left` and `serving` alone."""

    def __init__(self, address: str, hooks: FrontendHooks, wake: Wakeup, stop: Wakeup, directory: str) -> None:
        endpoint = parse_address(address)
        ours = [f"ipc://{directory}/{role}" for role in ("in", "out")] if endpoint.is_ipc else []
        places = ours or [tcp_endpoint(endpoint.host)] * 2
        self._wake = wake
        self._stopped = False
        self._wanted: queue.SimpleQueue[tuple[Asked, _Reader] | str] = queue.SimpleQueue()
        self._handshake = bind_router(address)
        self._input = bind_router(places[0])
        self._output = bind_pull(places[1])
        addresses = Addresses([bound_address(self._input)], [bound_address(self._output)])
        self._frontend = MinimalFrontend(hooks, addresses)
        self._pump = Pump()
        self._pump.add(stop.fileno(), self._stop)
        self._pump.add(wake.fileno(), self._take_wanted)
        self._pump.add(self._handshake, self._greet)
        self._pump.add(self._input, self._respond)
        self._pump.add(self._output, self._read)

    @property
    def serving(self) -> bool:
        return self._frontend.serving

    def serve(self) -> None:
        """Until stopped. Raises Gone."""
        while not self._stopped:
            self._pump.poll()

    def ask(self, asked: Asked, reader: _Reader) -> None:
        self._wanted.put((asked, reader))
        self._wake.set()

    def left(self, request_id: str) -> None:
        self._wanted.put(request_id)
        self._wake.set()

    def close(self) -> None:
        for socket in (self._handshake, self._input, self._output):
            close(socket, 0)

    def _stop(self) -> None:
        self._stopped = True

    def _take_wanted(self) -> None:
        self._wake.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                wanted = self._wanted.get_nowait()
                if isinstance(wanted, str):
                    self._send(self._frontend.left(wanted))
                else:
                    asked, reader = wanted
                    reader.request_id, messages = self._frontend.ask(asked, reader)
                    self._send(messages)

    def _greet(self) -> None:
        if frames := _received(self._handshake):
            init, messages = self._frontend.greet(frames[0], frames[1])
            if init is not None:
                send_nowait(self._handshake, [frames[0], init])
            self._send(messages)

    def _respond(self) -> None:
        if frames := _received(self._input):
            self._send(self._frontend.ready_response(frames[1]))

    def _read(self) -> None:
        if frames := _received(self._output):
            self._send(self._frontend.receive(frames))

    def _send(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            send_nowait(self._input, [self._frontend.identity, *frames])


def _received(socket: Socket) -> list[bytes]:
    return [bytes(frame) for frame in receive_nowait(socket) or []]


class _Server(ThreadingHTTPServer):
    """One port."""

    request_queue_size = 128  # with the library's 5, the kernel lets a crowd of users wait for seconds
    daemon_threads = True
    block_on_close = False


def _handler(shell: _Shell) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One connection."""

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._answer(200, {"data": [{"id": MODEL}]})
            else:
                self._answer(200 if shell.serving else 503, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            known = {name: body[name] for name in Asked.__struct_fields__ if body.get(name) is not None}
            reader = _Reader()
            shell.ask(Asked(**known), reader)
            try:
                (self._stream if body.get("stream") else self._whole)(reader)
            except OSError:
                shell.left(reader.request_id)

        def _whole(self, reader: _Reader) -> None:
            text = ""
            while (news := reader.news.get())[0] == "text":
                text += news[1]
            if news[0] == "failed":
                self._answer(500, {"error": {"message": news[1]}})
                return
            self._answer(200, _chunk(text, news[1], len(text.encode())))

        def _stream(self, reader: _Reader) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            while (news := reader.news.get())[0] == "text":
                self._event(_chunk(news[1], None, 0))
            self._event({"error": {"message": news[1]}} if news[0] == "failed" else _chunk("", news[1], 0))
            self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, value: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    return Handler


def _chunk(text: str, finish: str | None, tokens: int) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": finish}], "usage": {"completion_tokens": tokens}}
