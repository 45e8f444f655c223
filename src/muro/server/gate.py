"""What is asked of every request before any route sees it: an API key, and whether there is room for its connection.

API keys come from a file, one a line; `#` begins a comment. Only their digests are kept, and they are compared in
constant time: neither an attacker's clock nor a core dump tells one. Routes that say how the server is stay open, for
those who start and stop it; what makes work does not.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from muro.errors import ConfigError, OverloadedError, UnauthorizedError
from muro.server.connection import SURPLUS
from muro.server.exchange import Message, Scope, Send

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/docs", "/openapi.json"})
MAX_KEYS = 10_000

_MAX_KEY = 1024
_RETRY_AFTER = 2.0
"""Seconds after which a caller who met too many connections may come again."""


class ApiKeys:
    """Those that are let in; empty: everybody."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def replace(self, keys: ApiKeys) -> None:
        """Let in those with other keys from now on."""
        self._digests = keys._digests

    def check(self, authorization: bytes | None) -> None:
        """Look at the header `Authorization: Bearer KEY`. Raises UnauthorizedError."""
        if not self._digests:
            return
        scheme, _, key = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise UnauthorizedError("this server wants an API key, in the header Authorization: Bearer KEY")
        shown = _digest(key.strip()[:_MAX_KEY])
        found = False
        for digest in self._digests:  # all of them: how long it takes does not depend on which one it is
            found |= hmac.compare_digest(digest, shown)
        if not found:
            raise UnauthorizedError("this API key is not known here")


def read_api_keys(path: str | Path) -> ApiKeys:
    """Read a file of keys. Raises ConfigError."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API keys in {path} cannot be read: {error}") from error
    keys = [key for line in lines if (key := line.partition("#")[0].strip())]
    if not keys:
        raise ConfigError(f"there is no API key in {path}; it must have one a line")
    if len(keys) > MAX_KEYS or max(map(len, keys)) > _MAX_KEY or any(" " in key for key in keys):
        raise ConfigError(f"{path} must have at most {MAX_KEYS} keys of at most {_MAX_KEY} characters, without spaces")
    return ApiKeys(keys)


def check(scope: Scope, keys: ApiKeys) -> None:
    """Whether a request may go on. Raises UnauthorizedError, OverloadedError."""
    if scope["path"] in OPEN_PATHS and not scope["query_string"]:
        return
    if keys:
        keys.check(next((value for name, value in scope["headers"] if name == b"authorization"), None))
    if SURPLUS in scope:
        raise OverloadedError("there are too many connections; try again later", retry_after=_RETRY_AFTER)


def closing(send: Send) -> Send:
    """`send` that announces the end of the connection with the head of an answer."""

    async def announce(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return announce


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
