"""Requests that may wait only so long before they run: who has waited too long."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from muro.core.queues import RequestQueues
from muro.core.request import Request, RequestStatus

_SLACK = 1024
_NEVER_RAN = frozenset({RequestStatus.WAITING, RequestStatus.BLOCKED})


class Patience:
    """Deadlines of waiting requests. What runs or has ended is forgotten, at the latest when it outnumbers the rest."""

    def __init__(self, queues: RequestQueues) -> None:
        self._queues = queues
        self._deadlines: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, request: Request, now: float) -> None:
        """Note when a request that the queues have just taken in must run."""
        if request.queue_timeout is None:
            return
        heapq.heappush(self._deadlines, (now + request.queue_timeout, request.rank[1], request))
        if len(self._deadlines) > 2 * (self._queues.num_waiting + self._queues.num_blocked) + _SLACK:
            self._deadlines = [item for item in self._deadlines if item[2].status in _NEVER_RAN]
            heapq.heapify(self._deadlines)

    def over(self, now: float) -> Iterator[Request]:
        """The requests that have waited too long, each once. They must be finished."""
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.status in _NEVER_RAN:
                yield request
