"""The bounds of the HTTP side, all in one place, and how many files this process may have open.

What each bound protects is said here; who keeps it: `connection` (connections, heads, readers), `exchange` (bodies),
`admission` (the queue), `deadlines` (time).
"""

from __future__ import annotations

import resource

import msgspec

from muro.errors import ConfigError

_RESERVED_FILES = 128
"""Descriptors that are kept for everything but callers: engines, sockets to them, files that are read."""


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; None: no bound."""

    max_connections: int = 8192
    """Callers at once. A few more are let in to be told so, and to ask for health."""
    max_queued_requests: int = 2048
    """Choices that wait for their first token."""
    max_queued_tokens: int = 4 << 20
    """Tokens of the prompts that wait for their first token. An empty queue takes any one request."""
    max_held_body_bytes: int = 256 << 20
    """Bodies that are being received or read, together."""
    max_body_bytes: int | None = None
    """One body; None: as `service.body_limit`."""
    head_timeout: float = 20.0
    """From the first byte of a request, or from connecting, to the end of its head."""
    body_timeout: float = 60.0
    """From the end of the head to the end of the body."""
    keep_alive_timeout: float = 120.0
    """How long an idle connection stays. Proxies and clients close theirs after 60 to 90 s: theirs must go first."""
    slow_reader_timeout: float = 60.0
    """How long a reader may take nothing of what waits for it."""
    max_unread_tokens: int = 16384
    """How far a reader may be behind, beside what its connection holds."""
    queue_timeout: float | None = None
    first_token_timeout: float | None = None
    request_timeout: float | None = None
    """The three: from arrival to the first step, the first token and the last, where a caller sets none."""
    max_request_timeout: float | None = None
    """The most that a caller may ask for, in place of no bound at all too."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be positive")


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def file_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def connections_for(wanted: int, file_limit: int) -> int:
    """How many callers there can be at once. Raises ConfigError if hardly any."""
    possible = file_limit - _RESERVED_FILES
    if possible < 1:
        raise ConfigError(f"this process may open {file_limit} files, too few to serve: raise it with ulimit -n")
    return min(wanted, possible)
