"""Pending calls: over once, with the last answer, the first failure, a death, or when the caller gives up."""

import pytest

from muro.clients.calls import PendingCall, PendingCalls
from muro.errors import CallFailedError, CallTimeoutError, EngineDeadError, InternalError, UnknownOperationError
from muro.ids import CallId, EngineRank
from muro.wire.ops import GET_SUPPORTED_TASKS, IS_SLEEPING, SLEEP, WAKE_UP, Op
from muro.wire.output import UtilityOutput

RANKS = [EngineRank(0), EngineRank(1)]


class Opened:
    """A call, its ids by rank, and how often it was said to be over."""

    def __init__(self, calls: PendingCalls, op: Op[object] | None = None, ranks: list[EngineRank] = RANKS) -> None:
        self.over = 0
        self.call = PendingCall(op.name if op else "anything", op, self._done)
        self.ids = {rank: calls.expect(self.call, rank) for rank in ranks}

    def _done(self) -> None:
        self.over += 1


def value(call_id: CallId, result: object) -> UtilityOutput:
    return UtilityOutput(call_id, None, [None, result])


def test_over_with_the_last_answer() -> None:
    calls = PendingCalls()
    opened = Opened(calls)
    calls.answer(value(opened.ids[RANKS[1]], "second"))
    assert not opened.over
    with pytest.raises(InternalError):
        opened.call.result()
    calls.answer(value(opened.ids[RANKS[0]], "first"))
    assert opened.over == 1
    assert opened.call.result() == {0: "first", 1: "second"}
    assert len(calls) == 0


def test_over_with_the_first_failure_and_late_answers_vanish() -> None:
    calls = PendingCalls()
    opened = Opened(calls)
    calls.answer(UtilityOutput(opened.ids[RANKS[0]], "Call to anything method failed: no"))
    assert opened.over == 1 and len(calls) == 0
    calls.answer(value(opened.ids[RANKS[1]], 1))
    assert opened.over == 1
    with pytest.raises(CallFailedError, match="method failed: no"):
        opened.call.result()


def test_an_unknown_operation_is_told_apart() -> None:
    calls = PendingCalls()
    opened = Opened(calls, ranks=RANKS[:1])
    calls.answer(UtilityOutput(opened.ids[RANKS[0]], "... 'EngineCoreProc' object has no attribute 'anything'"))
    with pytest.raises(UnknownOperationError):
        opened.call.result()


def test_answers_are_converted_to_the_type_of_the_operation() -> None:
    calls = PendingCalls()
    right, wrong = Opened(calls, GET_SUPPORTED_TASKS, RANKS[:1]), Opened(calls, IS_SLEEPING, RANKS[:1])
    calls.answer(value(right.ids[RANKS[0]], ["generate"]))
    calls.answer(value(wrong.ids[RANKS[0]], "maybe"))
    assert right.call.result() == {0: ["generate"]}
    with pytest.raises(CallFailedError, match="is_sleeping"):
        wrong.call.result()


@pytest.mark.parametrize("result", [None, [None], [["builtins", "set"], [1]], "text"])
def test_answers_that_are_no_pair_or_carry_a_type_fail(result: object) -> None:
    calls = PendingCalls()
    opened = Opened(calls, ranks=RANKS[:1])
    calls.answer(UtilityOutput(opened.ids[RANKS[0]], None, result))
    with pytest.raises(CallFailedError):
        opened.call.result()


def test_a_death_ends_the_calls_that_wait_for_that_engine() -> None:
    calls = PendingCalls()
    both, other = Opened(calls), Opened(calls, ranks=RANKS[1:])
    calls.end_all(EngineDeadError("gone", rank=0), RANKS[0])
    assert (both.over, other.over) == (1, 0)
    with pytest.raises(EngineDeadError):
        both.call.result()
    calls.end_all(EngineDeadError("all gone"))
    assert other.over == 1 and len(calls) == 0


def test_giving_up_ends_a_call_once() -> None:
    calls = PendingCalls()
    opened = Opened(calls)
    calls.end(opened.call, CallTimeoutError("too late"))
    calls.end(opened.call, None)
    assert opened.over == 1 and len(calls) == 0
    with pytest.raises(CallTimeoutError):
        opened.call.result()


def test_ids_are_never_negative_and_never_shared() -> None:
    calls = PendingCalls(first_id=2**63 - 1)
    ids = [*Opened(calls).ids.values(), *Opened(calls).ids.values()]
    assert len(set(ids)) == 4 and all(0 < call_id < 2**63 for call_id in ids)


def test_notices_and_unknown_ids_are_ignored() -> None:
    calls = PendingCalls()
    opened = Opened(calls, ranks=RANKS[:1])
    calls.answer(value(CallId(-1), "notice"))
    calls.answer(value(CallId(12345), "late"))
    assert not opened.over and len(calls) == 1


@pytest.mark.parametrize(("answered", "paused"), [(True, False), (None, False), (False, True)])
def test_an_engine_that_is_half_awake_is_paused_still(answered: bool | None, paused: bool) -> None:
    calls = PendingCalls()
    rank = RANKS[0]
    calls.answer(value(Opened(calls, SLEEP, [rank]).ids[rank], None))
    assert calls.paused == {rank}
    calls.answer(value(Opened(calls, WAKE_UP, [rank]).ids[rank], answered))
    assert calls.paused == ({rank} if paused else set())
