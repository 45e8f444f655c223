"""Requests that may wait only so long before they run: who has waited too long."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from muro.core.queues import RequestQueues
from muro.core.request import Request, RequestStatus

_SLACK = 1024


class Patience:
    """Deadlines of waiting requests. What runs or has ended is forgotten, at the latest when it outnumbers the rest."""

    def __init__(self, queues: RequestQueues) -> None:
        self._queues = queues
        self._deadlines: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, request: Request, now: float) -> None:
        """Note when a request that has just come must run."""
        if request.queue_timeout is None:
            return
        heapq.heappush(self._deadlines, (now + request.queue_timeout, request.request_id))
        if len(self._deadlines) > 2 * len(self._queues.waiting) + _SLACK:
            self._deadlines = [item for item in self._deadlines if self._waits(item[1])]
            heapq.heapify(self._deadlines)

    def over(self, now: float) -> Iterator[Request]:
        """The requests that have waited too long, each once. They must be finished."""
        while self._deadlines and self._deadlines[0][0] <= now:
            request_id = heapq.heappop(self._deadlines)[1]
            if (request := self._waits(request_id)) is not None:
                yield request

    def _waits(self, request_id: str) -> Request | None:
        request = self._queues.waiting.get(request_id)
        return request if request is not None and request.status is RequestStatus.WAITING else None
