"""Users of a front-end's OpenAI API, each in a thread of its own. Judges nothing.

A `UserAsk` is written by its own thread and read by the examination's; each of its fields is replaced as a whole.
`leave` shuts the connection down from outside, which ends the thread.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

from muro.errors import ConfigError

TIMEOUT_S = 120.0
MAX_ANSWER = 1 << 20


class Api:
    """One front-end's API at `url`, as http://HOST:PORT."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port or 80
        except ValueError as error:
            raise ConfigError(f"{url!r} is no address of an HTTP API: {error}") from None
        if parts.scheme != "http" or not self._host:
            raise ConfigError(f"{url!r} is no address of an HTTP API; http://127.0.0.1:8000 works")
        self._model = ""
        self._asks: list[UserAsk] = []

    def healthy(self, within: float) -> bool:
        """Whether /health says 200, and a model is offered."""
        try:
            if self._get("/health", within)[0] != 200:
                return False
            status, body = self._get("/v1/models", within)
            if status != 200:
                return False
            self._model = json.loads(body)["data"][0]["id"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return False
        return True

    def ask(self, body: dict[str, Any]) -> UserAsk:
        """Ask for a completion."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        asked = UserAsk(connection, {"model": self._model, **body})
        self._asks = [one for one in self._asks if not one.done]
        self._asks.append(asked)
        asked.start()
        return asked

    def close(self) -> None:
        """Let all users leave."""
        for asked in self._asks:
            asked.leave()

    def _get(self, path: str, within: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=within)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read(MAX_ANSWER)
        finally:
            connection.close()


class UserAsk:
    """One request for a completion. See `frontend_exam.Ask`."""

    def __init__(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> None:
        self._connection = connection
        self._body = body
        self._thread = threading.Thread(target=self._run, name="muro-check-user", daemon=True)
        self._left = False
        self._socket: socket.socket | None = None
        self.status = 0
        self.begun = False
        self.finish_reason: str | None = None
        self.tokens: int | None = None
        self._error = False

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def failed(self) -> bool:
        return self.status != 200 or self._error or self.finish_reason is None

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Hang up, and wait for the thread's end."""
        self._left = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._connection.connect()
            self._socket = self._connection.sock  # the connection forgets it when the answer is its last
            if self._left:
                return
            payload = json.dumps(self._body)
            self._connection.request("POST", "/v1/completions", payload, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            self.status = response.status
            if self._body.get("stream") and response.status == 200:
                self._read_stream(response)
            else:
                self._take(json.loads(response.read(MAX_ANSWER)))
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
            # Hanging up closes what is being read under the reader's feet; all else is an answer that failed.
            self._error = True
        finally:
            self._connection.close()

    def _read_stream(self, response: http.client.HTTPResponse) -> None:
        while line := response.readline(MAX_ANSWER):
            if line.startswith(b"data: {"):
                self._take(json.loads(line.removeprefix(b"data: ")))

    def _take(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._error = True
            return
        if (usage := answer.get("usage")) is not None:
            self.tokens = usage["completion_tokens"]
        for choice in answer.get("choices", []):
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.begun = True
