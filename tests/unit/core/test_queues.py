"""queues.py: by priority and arrival, whatever is preempted, blocked and finished in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.core.queues import RequestQueues
from muro.core.request import Request, RequestStatus
from muro.core.sampling import Sampling
from muro.errors import InternalError
from muro.wire.output import FinishReason


class Never:
    """Blocks until somebody says otherwise."""

    phase = "grammar"

    def over(self) -> bool:
        return False


def request(number: int, priority: int = 0, *, blocked: bool = False) -> Request:
    blocked_on = Never() if blocked else None
    return Request(str(number), [1], Sampling(), max_length=9, priority=priority, blocked_on=blocked_on)


moves = st.tuples(
    st.sampled_from(["add", "block", "unblock", "admit", "preempt", "put first", "finish"]),
    st.integers(0, 30),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 1),
)


@given(by_priority=st.booleans(), moves=st.lists(moves, max_size=60))
def test_everybody_is_in_one_queue_and_in_order(by_priority: bool, moves: list[tuple[str, int, int]]) -> None:
    queues = RequestQueues(by_priority=by_priority)
    there: list[Request] = []
    for move, pick, priority in moves:
        blocked, running = queues.blocked(), queues.running()
        if move in ("add", "block"):
            new = request(queues.num_arrived, priority, blocked=move == "block")
            there.append(new)
            queues.add(new)
            assert new.rank == (priority if by_priority else 0, int(new.request_id))
        elif move == "unblock" and blocked:
            queues.unblock(blocked[pick % len(blocked)])
        elif move == "admit" and (first := queues.next_waiting()):
            assert first is queues.waiting()[0]
            queues.admit(first)
        elif move in ("preempt", "put first") and not all(map(queues.is_first, running)):
            last = queues.last_running()
            assert last.rank == max(r.rank for r in running if not queues.is_first(r))
            queues.preempt(last, put_first=move == "put first")
            assert queues.is_first(last) is (move == "put first")
        elif move == "finish" and there:
            gone = there.pop(pick % len(there))
            queues.finish(gone, FinishReason.ABORT)
            assert queues.get(gone.request_id) is None and gone.status is RequestStatus.FINISHED_ABORTED
        by_status = {
            RequestStatus.RUNNING: queues.running(),
            RequestStatus.BLOCKED: queues.blocked(),
            RequestStatus.WAITING: [r for r in queues.waiting() if r.status is RequestStatus.WAITING],
            RequestStatus.PREEMPTED: [r for r in queues.waiting() if r.status is RequestStatus.PREEMPTED],
        }
        for status, queue in by_status.items():
            assert sorted(map(id, queue)) == sorted(id(r) for r in there if r.status is status)
        for ordered in (queues.running(), queues.waiting()):
            assert ordered == sorted(ordered, key=lambda r: r.rank)
        counted = (queues.num_running, queues.num_waiting, queues.num_blocked, len(queues))
        assert counted == (len(queues.running()), len(queues.waiting()), len(queues.blocked()), len(there))
        assert all(queues.get(r.request_id) is r for r in there)


def test_whoever_was_put_first_comes_before_the_smallest_priority_and_is_not_preempted() -> None:
    queues = RequestQueues(by_priority=True)
    late = request(0, 5)
    queues.add(late)
    queues.admit(late)
    queues.preempt(late, put_first=True)
    queues.add(request(1, -(2**63)))
    assert queues.next_waiting() is late
    queues.admit(late)
    with pytest.raises(InternalError, match="give way"):
        queues.last_running()


def test_aborting_a_hundred_thousand_costs_little_and_leaves_nothing() -> None:
    queues = RequestQueues()
    waiting = [request(number) for number in range(100_000)]
    for one in waiting:
        queues.add(one)
    for one in reversed(waiting):
        queues.finish(one, FinishReason.ABORT)
    assert len(queues) == 0 and len(queues._waiting) <= 1024
    assert queues.next_waiting() is None
