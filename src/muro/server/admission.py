"""Who may still come in: requests that wait for their first token, the tokens of their prompts, bodies in memory.

Pure counting; time is asked of a clock. What is over a bound is refused at once, with a hint when to come again: after
as long as the last request waited that is no longer waiting. Invariant: what a ticket has taken it gives back exactly
once, in parts as its choices begin, and all of it when it is closed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from muro.errors import OverloadedError
from muro.server.limits import HttpLimits

_SOONEST, _LATEST = 1.0, 30.0
"""Bounds of the hint, in seconds."""


class Admission:
    """Counts for one server."""

    def __init__(self, limits: HttpLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self.queued_requests = 0
        self.queued_tokens = 0
        self.held_body_bytes = 0
        self.refused: Counter[str] = Counter({"requests": 0, "tokens": 0, "bodies": 0})
        """By what was full."""
        self.last_wait = 0.0

    @property
    def full(self) -> bool:
        """Whether nobody more may come at all."""
        return self.queued_requests >= self.limits.max_queued_requests

    def check(self) -> None:
        """Whether one more may come at all. Raises OverloadedError. To be asked before its body is read."""
        if self.full:
            raise self._full("requests", f"{self.queued_requests} requests wait for their first token")

    def enter(self) -> Ticket:
        """Take one request in, its body not read yet."""
        self.check()
        return Ticket(self)

    def check_tokens(self, choices: int, tokens: int) -> None:
        """Whether so much may join what waits. Raises OverloadedError."""
        if not self.queued_requests:
            return
        if self.queued_requests + choices > self.limits.max_queued_requests:
            raise self._full("requests", f"{self.queued_requests} requests wait, and this one has {choices} choices")
        if self.queued_tokens + tokens > self.limits.max_queued_tokens:
            raise self._full("tokens", f"prompts of {self.queued_tokens} tokens wait, and this one has {tokens}")

    def check_body(self, size: int) -> None:
        """Whether so many bytes more of bodies may be held. Raises OverloadedError."""
        if self.held_body_bytes and self.held_body_bytes + size > self.limits.max_held_body_bytes:
            raise self._full("bodies", f"bodies of {self.held_body_bytes} bytes are being read")

    @property
    def retry_after(self) -> float:
        """The hint, in seconds."""
        return min(max(_SOONEST, self.last_wait), _LATEST)

    def _full(self, what: str, words: str) -> OverloadedError:
        self.refused[what] += 1
        return OverloadedError(f"the server is full: {words}; try again later", retry_after=self.retry_after)


class Ticket:
    """What one request has taken; to be used in a `with` block around all its work."""

    __slots__ = ("_admission", "_bytes", "_choices", "_entered", "_tokens")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._entered = admission.clock()
        self._bytes = self._choices = self._tokens = 0

    def hold(self, size: int) -> None:
        """Hold `size` bytes of its body (more than before, or fewer). Raises OverloadedError."""
        if size > self._bytes:
            self._admission.check_body(size - self._bytes)
        self._admission.held_body_bytes += size - self._bytes
        self._bytes = size

    def queue(self, choices: int, tokens: int) -> None:
        """Join those that wait, with so many choices and tokens of prompts in all. Raises OverloadedError."""
        admission = self._admission
        admission.check_tokens(choices, tokens)
        self._choices, self._tokens = choices, tokens
        admission.queued_requests += choices
        admission.queued_tokens += tokens

    def begin(self) -> None:
        """One of the choices waits no longer."""
        if self._choices:
            self._admission.last_wait = self._admission.clock() - self._entered
            self._leave(1, self._tokens // self._choices)

    def close(self) -> None:
        """Give everything back. May be called twice."""
        self._leave(self._choices, self._tokens)
        self._admission.held_body_bytes -= self._bytes
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _leave(self, choices: int, tokens: int) -> None:
        self._choices -= choices
        self._tokens -= tokens
        self._admission.queued_requests -= choices
        self._admission.queued_tokens -= tokens
