"""One request at a time to a server, over a connection of its own.

Standard library alone, blocking: Ctrl-C interrupts it wherever it waits, and closing the connection aborts the request.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from muro.errors import ConfigError, RequestFailedError

PATIENCE = 600.0
"""Seconds without a byte after which a server that generates is given up."""
_REACHED_WITHIN = 60.0
"""Seconds in which a server must accept a connection."""


class Caller:
    """Who asks.

    Args:
        url: of the server, with or without `/v1` at its end.
        key: its API key.
        patience: seconds without a byte after which the server is given up; None: never.

    Raises:
        ConfigError: this is no address.
    """

    def __init__(self, url: str, key: str | None = None, *, patience: float | None = PATIENCE) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
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
        self._patience = patience

    @contextlib.contextmanager
    def asked(
        self, method: str, path: str, body: str | None = None, *, answers: Collection[int] = (200,)
    ) -> Iterator[HTTPResponse]:
        """The answer, if its status is one of `answers`.

        Raises RequestFailedError with the server's own words, ConfigError if nobody answers.
        """
        connection = self._kind(self._host, self._port, timeout=_REACHED_WITHIN)
        try:
            connection.connect()
        except OSError as error:
            what = f"nobody answers at {self.url} ({error}); start a server with muro serve, or give another address"
            raise ConfigError(what) from None
        try:
            connection.sock.settimeout(self._patience)
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            if response.status not in answers:
                raise RequestFailedError(_complaint(response))
            yield response
        except (OSError, HTTPException) as error:
            raise RequestFailedError(f"the server broke off: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()


def read_key(path: str | None) -> str | None:
    """The first line of a file, if there is one. Raises ConfigError."""
    if path is None:
        return None
    try:
        key = Path(path).read_text(encoding="ascii").strip().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API key in {path} cannot be read: {error}") from error
    if not key:
        raise ConfigError(f"there is no API key in {path}")
    return key


def _complaint(response: HTTPResponse) -> str:
    """What the server says is wrong."""
    text = response.read(1 << 16).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"status {response.status}: {text[:500]}"
