"""By when a request must have begun, have its first token, be done; and what happens otherwise.

A caller says it with the header `X-Request-Timeout` (see `parse_timeouts`) or the option `timeouts` of the body; the
shorter one counts. The server has defaults, and a longest time that nobody can exceed. All count from the arrival of
the request, so time spent on reading and tokenising counts too. How long a request may wait before it runs is judged
by the engine, which alone knows when it runs; this side only tells it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec

from muro.errors import DeadlineError, InvalidRequestError
from muro.server.limits import HttpLimits

HEADER = "X-Request-Timeout"

Seconds = Annotated[float, msgspec.Meta(gt=0)]
_NAMES = {"queue": "queue", "first-token": "first_token", "first_token": "first_token", "total": "total"}


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds from arrival: until it runs, until its first token, until its end. None: no bound."""

    queue: Seconds | None = None
    first_token: Seconds | None = None
    total: Seconds | None = None


def parse_timeouts(text: str) -> Timeouts:
    """`30` (total) or `queue=2, first-token=10, total=30`, in seconds. Raises InvalidRequestError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        key = _NAMES.get(name.strip() if equals else "total")
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if key is None or not 0 < seconds < math.inf:
            what = f"{HEADER} must be seconds, as in 30 or queue=2, first-token=10, total=30"
            raise InvalidRequestError(what, param=HEADER)
        found[key] = seconds
    return Timeouts(**found)


class Deadlines:
    """Those of one request.

    Args:
        limits: defaults and the longest.
        began: when the request arrived, on `clock`.
        clock: monotonic seconds.
    """

    def __init__(self, limits: HttpLimits, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._began = began
        self._clock = clock
        self._asked = Timeouts()
        self._begun = False
        self._scope: asyncio.Timeout | None = None

    def ask(self, timeouts: Timeouts) -> None:
        """Take over what the caller wants; asked twice, the shorter counts."""
        before = self._asked
        self._asked = Timeouts(
            queue=_shorter(before.queue, timeouts.queue),
            first_token=_shorter(before.first_token, timeouts.first_token),
            total=_shorter(before.total, timeouts.total),
        )
        self._reschedule()

    @property
    def queue(self) -> float | None:
        """Seconds from now within which it must run."""
        wanted = self._asked.queue or self._limits.queue_timeout
        return None if wanted is None else max(0.0, wanted - (self._clock() - self._began))

    @property
    def first_token(self) -> float | None:
        """Seconds from arrival."""
        return self._asked.first_token or self._limits.first_token_timeout

    @property
    def total(self) -> float | None:
        """Seconds from arrival."""
        return _shorter(self._asked.total or self._limits.request_timeout, self._limits.max_request_timeout)

    def begin(self) -> None:
        """The first token is there."""
        if not self._begun:
            self._begun = True
            self._reschedule()

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """End the block in time. Raises DeadlineError. Not to be nested."""
        try:
            async with asyncio.timeout(self._left()) as self._scope:
                yield
        except TimeoutError as error:
            if self._scope is None or not self._scope.expired():
                raise
            raise self._error() from error
        finally:
            self._scope = None

    def _next(self) -> float | None:
        return self.total if self._begun else _shorter(self.first_token, self.total)

    def _left(self) -> float | None:
        seconds = self._next()
        return None if seconds is None else max(0.0, seconds - (self._clock() - self._began))

    def _reschedule(self) -> None:
        if self._scope is not None and not self._scope.expired():
            left = self._left()
            self._scope.reschedule(None if left is None else asyncio.get_running_loop().time() + left)

    def _error(self) -> DeadlineError:
        seconds = self._next() or 0.0
        if self._begun or seconds != self.first_token:
            return DeadlineError(f"the request was not done within {seconds:g} s of its arrival, its deadline")
        return DeadlineError(f"there was no token within {seconds:g} s of the request's arrival, its deadline for that")


def _shorter(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
