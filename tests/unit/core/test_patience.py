"""patience.py, and what the scheduler makes of it."""

from __future__ import annotations

from muro.core.patience import Patience
from muro.core.queues import RequestQueues
from muro.core.request import Request, RequestStatus
from muro.core.sampling import Sampling
from muro.wire.output import FinishReason
from tests.unit.core.test_queues import Never
from tests.unit.core.test_scheduler import Bench


def request(name: str, timeout: float | None) -> Request:
    return Request(name, [1], Sampling(temperature=0.0), max_length=9, queue_timeout=timeout)


def test_who_waits_too_long_is_named_once_in_order() -> None:
    queues = RequestQueues()
    patience = Patience(queues)
    for name, timeout in (("late", 3.0), ("soon", 1.0), ("patient", None)):
        made = request(name, timeout)
        queues.add(made)
        patience.add(made, 10.0)
    assert list(patience.over(10.9)) == []
    assert [r.request_id for r in patience.over(20.0)] == ["soon", "late"]
    assert list(patience.over(99.0)) == []


def test_what_runs_or_has_ended_is_left_alone_and_forgotten() -> None:
    queues = RequestQueues()
    patience = Patience(queues)
    for number in range(5000):
        made = request(str(number), 1.0)
        queues.add(made)
        patience.add(made, 0.0)
        if number:
            queues.finish(made, FinishReason.ABORT)
    assert len(patience) < 1100
    first = queues.next_waiting()
    assert first is not None
    queues.admit(first)
    assert list(patience.over(9.0)) == []


def test_a_preempted_request_has_run_and_may_wait() -> None:
    queues = RequestQueues()
    patience = Patience(queues)
    made = request("a", 1.0)
    queues.add(made)
    patience.add(made, 0.0)
    queues.admit(made)
    queues.preempt(made)
    assert made.status is RequestStatus.PREEMPTED
    assert list(patience.over(9.0)) == []


def test_a_request_that_waits_for_its_grammar_waits_too() -> None:
    queues = RequestQueues()
    patience = Patience(queues)
    made = Request("a", [1], Sampling(), max_length=9, queue_timeout=1.0, blocked_on=Never())
    queues.add(made)
    patience.add(made, 0.0)
    assert made.status is RequestStatus.BLOCKED
    assert list(patience.over(2.0)) == [made]


def test_it_ends_with_an_error_beside_those_that_run() -> None:
    bench = Bench(seqs=1)
    bench.add("runs", prompt=1)
    bench.step()
    bench.add("waits", prompt=1, queue_timeout=1.0)  # the clock goes on by 1 each time that it is read
    bench.add("patient", prompt=1, queue_timeout=1000.0)
    bench.step()
    bench.step()
    (ended,) = bench.scheduler.take_ended()
    assert (ended.request_id, ended.finish_reason) == ("waits", FinishReason.ERROR)
    assert ended.error is not None
    assert (ended.error.code, ended.error.message.count("within 1 s")) == ("deadline", 1)
    assert bench.scheduler.get("waits") is None
    assert bench.scheduler.get("patient") is not None
    assert bench.scheduler.take_ended() == []


def test_work_is_there_until_its_end_was_told() -> None:
    bench = Bench()
    bench.add("a", prompt=1, queue_timeout=0.0)
    bench.scheduler.schedule()
    assert len(bench.scheduler) == 1
    assert len(bench.scheduler.take_ended()) == 1
    assert len(bench.scheduler) == 0
