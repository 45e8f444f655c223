"""Waiting and running requests, each in the order of their rank.

Which queue a request is in and what its status says always agree, because both change here. The rank is (priority,
arrival), smaller first; where requests run first come, first served, every priority is 0. A preempted request keeps
its rank, so it is among the first to run again, and the running one to preempt is the last.

What waits for something else than its turn (`Request.blocked_on`) stands aside, and holds nobody up.
"""

from __future__ import annotations

import heapq
from bisect import insort
from operator import attrgetter

from muro.core.request import FINISHED, Rank, Request, RequestStatus
from muro.errors import InternalError
from muro.wire.output import FinishReason

_SLACK = 1024
_RANK = attrgetter("rank")
_FIRST = -(2**63) - 1
"""Smaller than any priority that a request may have."""

_WAITS = frozenset({RequestStatus.WAITING, RequestStatus.PREEMPTED})


class RequestQueues:
    """All unfinished requests.

    Args:
        by_priority: whether priorities count.
    """

    def __init__(self, *, by_priority: bool = False) -> None:
        self._by_priority = by_priority
        self._requests: dict[str, Request] = {}
        self.num_arrived = 0
        # Both may hold some that have left in the meantime: leaving only changes the status, and costs no search.
        self._waiting: list[tuple[Rank, Request]] = []
        self._running: list[Request] = []
        self._blocked: dict[str, Request] = {}
        self._stale = False
        self.num_running = 0
        self.num_waiting = 0
        """Requests that could run if it were their turn."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def num_blocked(self) -> int:
        return len(self._blocked)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request with this id."""
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Take in a new request."""
        request.rank = (request.priority if self._by_priority else 0, self.num_arrived)
        self.num_arrived += 1
        self._requests[request.request_id] = request
        if request.blocked_on is None:
            self._wait(request)
        else:
            request.become(RequestStatus.BLOCKED)
            self._blocked[request.request_id] = request

    def running(self) -> list[Request]:
        """The running requests by rank. Not to be changed, and good until one is admitted.

        Those who finish later are still in it, with another status. Those who are preempted from its end are not.
        """
        if self._stale:
            self._stale = False
            self._running = [request for request in self._running if request.status is RequestStatus.RUNNING]
        return self._running

    def waiting(self) -> list[Request]:
        """The waiting requests by rank, preempted ones included, blocked ones not. Costs a search through all."""
        return [request for _, request in sorted(self._waiting) if request.status in _WAITS]

    def blocked(self) -> list[Request]:
        """The requests that wait for something else than their turn."""
        return list(self._blocked.values())

    def unblock(self, request: Request) -> None:
        """What the request waited for has come: it takes its place by its rank."""
        del self._blocked[request.request_id]
        request.blocked_on = None
        request.become(RequestStatus.WAITING)
        self._wait(request)

    def next_waiting(self) -> Request | None:
        """The request that is to run next, left where it is."""
        waiting = self._waiting
        while waiting:
            request = waiting[0][1]
            if request.status in _WAITS:
                return request
            heapq.heappop(waiting)
        return None

    def admit(self, request: Request) -> None:
        """Let the request that `next_waiting` gave run."""
        heapq.heappop(self._waiting)
        running = self.running()  # before the status says that the request is one of them
        request.become(RequestStatus.RUNNING)
        self.num_waiting -= 1
        self.num_running += 1
        if running and running[-1].rank > request.rank:
            insort(running, request, key=_RANK)
        else:
            running.append(request)

    def last_running(self) -> Request:
        """The running request to preempt. Whoever was put first is none of them, and never in want of it."""
        running = self._running
        while running and running[-1].status is not RequestStatus.RUNNING:
            running.pop()
        if running and not self.is_first(running[-1]):
            return running[-1]
        raise InternalError("a request needs room, and nobody can give way")

    def preempt(self, request: Request, *, put_first: bool = False) -> None:
        """Let a running request wait again; with `put_first` before all others that were not, and for good."""
        request.become(RequestStatus.PREEMPTED)
        self.num_running -= 1
        if self._running[-1] is request:
            self._running.pop()
        else:
            self._stale = True
        if put_first:
            request.rank = (_FIRST, request.rank[1])
        self._wait(request)

    def is_first(self, request: Request) -> bool:
        """Whether the request was put first."""
        return request.rank[0] == _FIRST

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Forget a request for good."""
        status = request.status
        request.become(FINISHED[reason])
        del self._requests[request.request_id]
        if status is RequestStatus.RUNNING:
            self.num_running -= 1
            self._stale = True
        elif status is RequestStatus.BLOCKED:
            del self._blocked[request.request_id]
        else:
            self.num_waiting -= 1
            if len(self._waiting) > 2 * self.num_waiting + _SLACK:
                self._waiting = [item for item in self._waiting if item[1].status in _WAITS]
                heapq.heapify(self._waiting)

    def _wait(self, request: Request) -> None:
        self.num_waiting += 1
        heapq.heappush(self._waiting, (request.rank, request))
