"""How much an engine lets in: a counter, not a queue that blocks.

Invariant: `check` and `admit` are called by the receiver thread alone, `taken` and `finished` by the loop
thread alone. Each side writes only its own totals, so the difference is exact enough for a limit without any
lock, and nothing can come between `check` and `admit`.
"""

from __future__ import annotations

from muro.config import Limits
from muro.errors import OverloadedError


class Admission:
    """Counts requests and bytes between the door and the end of their work."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests_in = self._requests_out = 0
        self._bytes_in = self._bytes_out = 0

    def check(self, size: int) -> None:
        """Whether a request of `size` bytes may come in. Raises OverloadedError when a limit is reached."""
        if self._requests_in - self._requests_out >= self._limits.max_requests:
            raise OverloadedError(
                f"the engine holds {self._limits.max_requests} requests, its limit (max_requests); try again later"
            )
        if self._bytes_in - self._bytes_out + size > self._limits.max_request_bytes:
            raise OverloadedError(
                f"requests of {self._limits.max_request_bytes} bytes are waiting for the engine, its limit "
                "(max_request_bytes); try again later"
            )

    def admit(self, size: int) -> None:
        """Count one request of `size` bytes in."""
        self._requests_in += 1
        self._bytes_in += size

    def taken(self, size: int) -> None:
        """The loop has taken a request of `size` bytes from the queue."""
        self._bytes_out += size

    def finished(self, count: int = 1) -> None:
        """`count` requests have ended, in whatever way."""
        self._requests_out += count

    @property
    def requests(self) -> int:
        """Requests admitted and not yet finished."""
        return self._requests_in - self._requests_out
