"""Pending calls: operations that were sent to one or several engines, until their answers are in.

Pure: no socket, no thread, no clock. A call goes to each of its engines under an id of its own. It is over with
the last answer, with the first failure, with the death of an engine it waits for, or when its caller gives up;
answers that come after that have unknown ids and vanish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muro.errors import CallFailedError, InternalError, MuroError, RemoteProtocolError
from muro.ids import CallId, EngineRank
from muro.wire.failure import call_error
from muro.wire.ops import Op
from muro.wire.output import UtilityOutput

_PAUSES = frozenset({"pause_scheduler", "pause_generation", "sleep"})
_RESUMES = frozenset({"resume_scheduler", "wake_up"})
_LAST_ID = 2**63 - 1  # peers accept 64 bits; negative ids are notices


class PendingCall:
    """One call and the answers it has so far. `done` is called once, when it is over.

    `op` is None for an operation that is known by its name alone; its answers are handed out as they came.
    """

    __slots__ = ("_done", "answers", "error", "method", "op", "over", "waiting")

    def __init__(self, method: str, op: Op[Any] | None, done: Callable[[], object]) -> None:
        self.method = method
        self.op = op
        self.waiting: dict[CallId, EngineRank] = {}
        self.answers: dict[EngineRank, Any] = {}
        self.error: MuroError | None = None
        self.over = False
        self._done = done

    def result(self) -> dict[EngineRank, Any]:
        """The answers by rank. Raises the error that ended the call; call it when `over`."""
        if self.error is not None:
            raise self.error
        if not self.over:
            raise InternalError(f"the result of {self.method!r} was taken before it was there")
        return self.answers

    def end(self, error: MuroError | None) -> None:
        """It is over; only the first call counts."""
        if not self.over:
            self.over = True
            self.error = error
            self._done()


class PendingCalls:
    """All calls of one client.

    Args:
        first_id: ids count up from here, so that answers for an earlier client of the same engines are unknown.
    """

    def __init__(self, first_id: int = 1) -> None:
        self._next_id = first_id
        self._calls: dict[CallId, PendingCall] = {}
        self.paused: set[EngineRank] = set()
        """Engines that have been paused by a call of this client, and not resumed since."""

    def __len__(self) -> int:
        """Answers that are awaited."""
        return len(self._calls)

    def num_waiting(self, rank: EngineRank) -> int:
        """Answers that are awaited from one engine; any thread may ask."""
        return sum(rank in call.waiting.values() for call in list(self._calls.values()))

    def expect(self, call: PendingCall, rank: EngineRank) -> CallId:
        """The id under which `rank` is called; the call waits for its answer too."""
        call_id = CallId(self._next_id)
        self._next_id = self._next_id + 1 if self._next_id < _LAST_ID else 1
        self._calls[call_id] = call
        call.waiting[call_id] = rank
        return call_id

    def answer(self, answer: UtilityOutput) -> None:
        """Take an answer in; unknown ids are ignored."""
        call = self._calls.pop(CallId(answer.call_id), None)
        if call is None:
            return
        rank = call.waiting.pop(CallId(answer.call_id))
        try:
            call.answers[rank] = _value(call, answer)
        except MuroError as error:
            self.end(call, error)
            return
        if call.method in _PAUSES:
            self.paused.add(rank)
        elif call.method in _RESUMES and call.answers[rank] is not False:  # that would be half awake
            self.paused.discard(rank)
        if not call.waiting:
            self.end(call, None)

    def end(self, call: PendingCall, error: MuroError | None) -> None:
        """End a call, for instance because its caller gave up; further answers to it vanish."""
        for call_id in call.waiting:
            self._calls.pop(call_id, None)
        call.waiting.clear()
        call.end(error)

    def end_all(self, error: MuroError, rank: EngineRank | None = None) -> None:
        """End every call that waits for `rank` (None: every call)."""
        for call in {id(call): call for call in self._calls.values()}.values():
            if rank is None or rank in call.waiting.values():
                self.end(call, error)


def _value(call: PendingCall, answer: UtilityOutput) -> Any:
    if answer.failure_message is not None:
        raise call_error(call.method, answer.failure_message)
    result = answer.result
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise CallFailedError(
            f"the engine's answer to {call.method!r} is no pair of type and value", method=call.method
        )
    if result[0] is not None:
        raise CallFailedError(
            f"the engine answers {call.method!r} with a value of a Python type of its own, which is never built from "
            "the wire: switch off its insecure serialization",
            method=call.method,
        )
    if call.op is None:
        return result[1]
    try:
        return call.op.check_reply(result[1])
    except RemoteProtocolError as error:
        raise CallFailedError(error.message, method=call.method) from error
