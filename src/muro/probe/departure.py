"""How long one who has hung up is still there for the other side.

A ROUTER ignores a second peer of the same identity, without a word and for ever, until it has noticed that the first
one's connection has ended. So whoever follows under the same identity must come later than that.
"""

from __future__ import annotations

import time
from typing import Final

from muro.transport.monitor import Connection

NOTICE_S: Final = 0.1
"""What the other side is given to notice that somebody has hung up; nothing tells when it has.

An engine takes longer than that to start.
"""


class Departure:
    """Of one connection that this process dials."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._left_at: float | None = None

    @property
    def has_left(self) -> bool:
        """Whether `leave` was called."""
        return self._left_at is not None

    @property
    def noticed(self) -> bool:
        """Whether another one may dial under the same identity."""
        if self._left_at is None or (self._connection is not None and self._connection.is_open):
            return False
        return time.monotonic() >= self._left_at + NOTICE_S

    def dialled(self, descriptor: int) -> None:
        """There is a connection, of this descriptor."""
        self._connection = Connection(descriptor)

    def ended(self) -> None:
        """The other side has ended it."""
        self._connection = None

    def leave(self) -> None:
        """The socket is closed by us; may be called twice."""
        if self._left_at is None:
            self._left_at = time.monotonic()
