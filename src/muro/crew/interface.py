"""What a server knows of the others that have the same engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from muro.observe.metrics import Numbers


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One server process."""

    index: int
    """Its place among the clients of the engines."""
    state: str
    """"starting", "serving", "restarting" or "stopped"."""
    pid: int | None = None
    generation: int = 0
    """How often it was replaced."""
    since: float | None = None
    """When it began to serve, on the monotonic clock; None if it does not."""


class Crew(Protocol):
    """All servers, as one of them sees them."""

    async def add_up(self, own: Numbers) -> Numbers:
        """The numbers of all together; our own are these."""
        ...

    def servers(self) -> Sequence[ServerStatus]:
        """How each of them is; empty if there is one."""
        ...


class Alone:
    """A server that shares its engines with nobody."""

    async def add_up(self, own: Numbers) -> Numbers:
        return own

    def servers(self) -> Sequence[ServerStatus]:
        return ()
