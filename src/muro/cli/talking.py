"""A caller of any OpenAI-compatible server who chats: one request at a time, over a connection of its own.

Standard library alone, blocking: Ctrl-C interrupts it wherever it waits, and closing the connection aborts the request.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from muro.errors import ConfigError, RequestFailedError

Message = dict[str, str]

_PATIENCE = 600.0
"""Seconds without a byte after which a server is given up."""


class Partner:
    """Who answers.

    Args:
        url: of the server, with or without `/v1` at its end.
        key: its API key.

    Raises:
        ConfigError: this is no address.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(f"{url} is not the address of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise ConfigError(f"{url} is not the address of a server; one is http://127.0.0.1:8000")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self.url = url

    def models(self) -> list[str]:
        """What it serves. Raises ConfigError if nobody answers, RequestFailedError if it refuses."""
        with self._asked("GET", "/v1/models") as response:
            return [str(card["id"]) for card in json.loads(response.read())["data"]]

    def answer(self, messages: Sequence[Message], options: dict[str, Any]) -> Generator[str, None, str]:
        """The next message of the chat as it comes; closing the iterator aborts it. It returns the finish reason.

        Raises RequestFailedError with the server's own words, ConfigError if nobody answers.
        """
        body = {**options, "messages": list(messages), "stream": True}
        reason = ""
        with self._asked("POST", "/v1/chat/completions", json.dumps(body)) as response:
            for event in _events(response):
                if "error" in event:
                    raise RequestFailedError(str(event["error"].get("message", event["error"])))
                for choice in event.get("choices", ()):
                    reason = choice.get("finish_reason") or reason
                    if text := choice.get("delta", {}).get("content"):
                        yield text
        return reason

    @contextlib.contextmanager
    def _asked(self, method: str, path: str, body: str | None = None) -> Iterator[HTTPResponse]:
        connection = self._kind(self._host, self._port, timeout=_PATIENCE)
        try:
            connection.connect()
        except OSError as error:
            what = f"nobody answers at {self.url} ({error}); start a server with muro serve, or give another address"
            raise ConfigError(what) from None
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RequestFailedError(_complaint(response))
            yield response
        except (OSError, HTTPException) as error:
            raise RequestFailedError(f"the server broke off: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def _complaint(response: HTTPResponse) -> str:
    """What the server says is wrong."""
    text = response.read(1 << 16).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"status {response.status}: {text[:500]}"
