"""queues.py: first come, first served, whatever is preempted and finished in between."""

from hypothesis import given
from hypothesis import strategies as st

from muro.core.queues import RequestQueues
from muro.core.request import Request, RequestStatus
from muro.core.sampling import Sampling
from muro.wire.output import FinishReason


def request(number: int) -> Request:
    return Request(str(number), [1], Sampling(), max_length=9)


@given(st.lists(st.tuples(st.sampled_from(["add", "admit", "preempt", "finish"]), st.integers(0, 30))))
def test_whatever_runs_arrived_before_whatever_waits(moves: list[tuple[str, int]]) -> None:
    queues = RequestQueues()
    arrived = 0
    for move, pick in moves:
        if move == "add":
            queues.add(request(arrived))
            arrived += 1
        elif move == "admit" and queues.waiting:
            first = queues.next_waiting()
            assert queues.admit() is first
        elif move == "preempt" and queues.running:
            last = list(queues.running.values())[-1]
            assert queues.preempt_last() is last
        elif move == "finish" and (there := [*queues.running.values(), *queues.waiting.values()]):
            gone = there[pick % len(there)]
            queues.finish(gone, FinishReason.ABORT)
            assert queues.get(gone.request_id) is None and gone.status is RequestStatus.FINISHED_ABORTED
        order = [int(i) for i in (*queues.running, *queues.waiting)]
        assert order == sorted(order) and len(order) == len(queues)
        assert all(r.status is RequestStatus.RUNNING for r in queues.running.values())
        assert all(r.status in {RequestStatus.WAITING, RequestStatus.PREEMPTED} for r in queues.waiting.values())
        assert all(queues.get(str(number)) is not None for number in order)
