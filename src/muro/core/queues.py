"""Waiting and running requests, in order of arrival.

Which queue a request is in and what its status says always agree, because both change here. One order holds at all
times: whatever runs arrived before whatever waits. So a preempted request goes to the front of the waiting ones,
and the running one to preempt is the last.
"""

from __future__ import annotations

from collections import OrderedDict

from muro.core.request import FINISHED, Request, RequestStatus
from muro.wire.output import FinishReason


class RequestQueues:
    """First come, first served. Every change costs constant time, also to abort one of 100,000 waiting."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self.running: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request with this id."""
        return self.running.get(request_id) or self.waiting.get(request_id)

    def add(self, request: Request) -> None:
        """Take in a new request, as the last."""
        self.waiting[request.request_id] = request

    def next_waiting(self) -> Request | None:
        """The request that is to run next, left where it is."""
        return next(iter(self.waiting.values()), None)

    def admit(self) -> Request:
        """Move the first waiting request to the running ones."""
        request_id, request = self.waiting.popitem(last=False)
        request.become(RequestStatus.RUNNING)
        self.running[request_id] = request
        return request

    def preempt_last(self) -> Request:
        """Move the running request that came last to the front of the waiting ones."""
        request_id, request = self.running.popitem(last=True)
        request.become(RequestStatus.PREEMPTED)
        self.waiting[request_id] = request
        self.waiting.move_to_end(request_id, last=False)
        return request

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Forget a request for good."""
        request.become(FINISHED[reason])
        if self.running.pop(request.request_id, None) is None:
            del self.waiting[request.request_id]
