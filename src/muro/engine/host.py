"""EngineHost: drives one engine for any number of clients. Pure: no socket, no thread, no clock of its own.

Events go in (`apply`, `step`), routed outputs come out. The host owns what the engine must not know: which
client a request belongs to, the ids it has there, who still waits for an answer. The rules:

- Every request that was admitted ends in exactly one final output, unless its own client aborted it.
- The engine sees internal ids, which are unique; a wire id may occur once per client.
- What an engine raises while it takes a request or runs an operation ends that request or operation.
  What it raises in a step ends the engine, unless it is a RequestError that names its request.

`prepare` is the one method for the receiver thread; it touches no state of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import msgspec

from muro.engine.admission import Admission
from muro.engine.checks import check_request
from muro.engine.endings import aborted_output, failed_output, paused_output
from muro.engine.events import OF_THE_LOOP, Abort, Add, Call, Event, ExecutorFailed, GivenUp, Routed
from muro.engine.interface import EngineCore, EngineInfo, StepResult
from muro.engine.operations import declared_operations, find_operation
from muro.engine.pausing import Pause, PauseWanted, clear_caches
from muro.engine.profiling import Profiling
from muro.engine.sleeping import Sleep
from muro.engine.standard import StandardOperations
from muro.errors import CallFailedError, EngineDeadError, InvalidRequestError, MuroError, RequestError
from muro.ids import ClientIndex, EngineRank
from muro.wire.failure import SHUTTING_DOWN, call_failure_text
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, UtilityOutput
from muro.wire.progress import PAUSED
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import PrefillStats, SchedulerStats


class _Live(msgspec.Struct, gc=False):
    """A request that the engine is working on, and whom it belongs to."""

    client: ClientIndex
    origin: ClientIndex
    wire_id: str
    renamed: bool
    prompt: int = 0
    """Tokens of its prompt, until something of it was put out."""


class EngineHost:
    """One engine, seen from the loop.

    Args:
        engine: what to drive.
        rank: data-parallel rank, stamped on every message.
        name: what to call the engine in error messages.
        admission: counts requests that have ended; the receiver counts them in.
        clock: monotonic seconds, for time stamps.
        post_late: takes the answer of an operation that completes later; called from any thread.
        log_stats: whether scheduler statistics are sent.
    """

    def __init__(
        self,
        engine: EngineCore,
        *,
        rank: EngineRank,
        name: str,
        admission: Admission,
        clock: Callable[[], float],
        post_late: Callable[[Routed], None],
        log_stats: bool = True,
    ) -> None:
        self._engine = engine
        self._info = engine.info()
        self._rank = int(rank)
        self._name = name
        self._admission = admission
        self._clock = clock
        self._post_late = post_late
        self._log_stats = log_stats
        self._pause = Pause()
        # What an engine declares itself comes last, and so instead of ours.
        owners = (StandardOperations(engine), Profiling(), self._pause, Sleep(engine, self._pause), engine)
        self._operations = {name: found for owner in owners for name, found in declared_operations(owner).items()}
        self._live: dict[str, _Live] = {}
        self._by_wire: dict[tuple[ClientIndex, str], str] = {}
        self._fast_aborts: deque[Abort] = deque()
        self._taken: list[str] = []
        self._renames = 0
        self._stats_due = False
        self._stats: SchedulerStats | None = None
        self._stopping = False
        self.achieved = 0
        """Grows with what steps do for requests beside putting out tokens: prompt tokens computed, requests ended."""
        self._handlers: dict[type, Callable[[Any], list[Routed]]] = {
            Add: self._add,
            Abort: self._abort,
            Call: self._call,
            GivenUp: self._given_up,
            ExecutorFailed: self._executor_failed,
            **dict.fromkeys(OF_THE_LOOP, lambda event: []),
        }

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def num_live(self) -> int:
        """Requests that have not ended, those that a pause holds back included."""
        return len(self._live)

    @property
    def num_held(self) -> int:
        """Requests that a pause holds back."""
        return len(self._pause.held)

    @property
    def load(self) -> SchedulerStats:
        """How many requests run and wait, and the use of the cache, as far as the engine has told."""
        now, held = self._stats or SchedulerStats(self.num_live - self.num_held), self.num_held
        return SchedulerStats(now.num_running_reqs, now.num_waiting_reqs + held, kv_cache_usage=now.kv_cache_usage)

    def has_work(self) -> bool:
        return not self._pause.frozen and self._engine.has_work()

    def phase(self) -> str | None:
        """Why nothing comes out although there are requests, or None."""
        if self._pause.mode is not None and (self._pause.frozen or self._is_empty()):
            return PAUSED
        return self._engine.phase()

    def prepare(self, request: EngineCoreRequest) -> Any:
        """Check a request and let the engine preprocess it (receiver thread).

        Raises what the engine's `preprocess` raises, and RequestError for what no engine can serve.
        """
        check_request(request, self._info)
        return self._engine.preprocess(request)

    def rejection(self, client: ClientIndex, request_id: str, error: Exception) -> Routed:
        """The answer to a request that never came in (receiver thread)."""
        routed = self._ended(_Live(client, client, request_id, False), failed_output(request_id, error))
        routed.settled = [request_id]  # no request of this id that ended earlier may keep it from its reader
        return routed

    def abort_soon(self, event: Abort) -> None:
        """Put an abort on the fast lane (receiver thread); the same event must follow through `apply`."""
        self._fast_aborts.append(event)

    def apply(self, event: Event) -> list[Routed]:
        """Handle one event. Raises what ends the engine."""
        routed = self._handlers[type(event)](event)
        return [*routed, *self._settle_pause()] if self._pause.unsettled else routed

    def step(self) -> tuple[list[Routed], bool]:
        """Let the engine do one step; says whether a forward ran. Raises what ends the engine."""
        self._stats_due = True
        self._taken.clear()
        try:
            result = self._engine.step(self._take_aborts)
        except RequestError as error:
            internal = error.request_id
            if internal is None or (internal not in self._live and internal not in self._taken):
                raise
            self._engine.abort_requests([internal])
            self.achieved += 1
            # Nobody waits any more for a request that failed in the step in which its abort was taken.
            return [self._end(self._forget(internal), error)] if internal in self._live else [], True
        if not isinstance(result, StepResult):
            raise TypeError(f"step() of the engine gave {type(result).__name__}, not a StepResult")
        self.achieved += result.prompt_tokens
        routed = self._route(result.outputs)
        return [*routed, *self._settle_pause()] if self._pause.unsettled else routed, result.executed

    def went_idle(self) -> list[Routed]:
        """Call before waiting for input: the fast lane is cleared, and the last statistics go out."""
        self._fast_aborts.clear()
        if not self._stats_due:
            return []
        self._stats_due = False
        stats = self._take_stats()
        return [] if stats is None else [self._routed(ClientIndex(0), scheduler_stats=stats)]

    def stop_accepting(self) -> None:
        """From now on requests end with ABORT and operations fail: the engine is going to stop."""
        self._stopping = True

    def abort_all(self) -> list[Routed]:
        """End everything in flight with ABORT, and fail who waits for a pause."""
        waiting, self._pause.waiting = self._pause.waiting, []
        answers = [self._answer(event, failure=SHUTTING_DOWN) for event, _ in waiting]
        return [*self._end_all(list(self._live)), *answers]

    def _end_all(self, internal_ids: Collection[str]) -> list[Routed]:
        self._engine.abort_requests(internal_ids)
        self._stats_due = True
        by_client: dict[ClientIndex, list[str]] = {}
        for internal in internal_ids:
            live = self._forget(internal)
            by_client.setdefault(live.client, []).append(live.wire_id)
        return [
            self._routed(client, outputs=[aborted_output(i) for i in ids], finished_requests=ids)
            for client, ids in by_client.items()
        ]

    def _add(self, event: Add) -> list[Routed]:
        live = _Live(event.client, event.origin, event.request_id, False, event.prompt)
        if self._stopping or self._pause.refuses:
            self._admission.taken(event.size)
            self._admission.finished()
            wire_id = event.request_id
            return [self._ended(live, aborted_output(wire_id) if self._stopping else paused_output(wire_id))]
        key = (event.origin, event.request_id)
        if (running := self._by_wire.get(key)) is not None:
            # Two streams under one id cannot be told apart by their reader, so the id ends as a whole.
            self._engine.abort_requests([running])
            self._admission.taken(event.size)
            self._admission.finished()
            error = InvalidRequestError(f"request id {event.request_id!r} is already in flight")
            return [self._end(self._forget(running), error)]
        internal = event.request_id
        while internal in self._live:
            self._renames += 1
            internal = f"{event.request_id}#{self._renames}"
            live.renamed = True
        self._live[internal] = live
        self._by_wire[key] = internal
        if self._pause.mode is not None:
            self._pause.held[internal] = event
            return []
        return self._hand_over(internal, event)

    def _hand_over(self, internal: str, event: Add) -> list[Routed]:
        self._admission.taken(event.size)
        try:
            self._engine.add_request(internal, event.prepared)
        except Exception as error:
            self._engine.abort_requests([internal])  # it may have been half taken
            return [self._end(self._forget(internal), error)]
        return []

    def _settle_pause(self) -> list[Routed]:
        """Do what a pause or its end asks for, as far as it can be done now."""
        pause, routed = self._pause, list[Routed]()
        if pause.mode is None:
            held, pause.held = pause.held, {}
            for internal, event in held.items():
                routed += self._hand_over(internal, event)
        elif pause.mode == "abort":
            routed += self._end_all([i for i in self._live if i not in pause.held])
        elif not (pause.frozen or self._is_empty()):
            return []
        pause.unsettled = False
        waiting, pause.waiting = pause.waiting, []
        for call, wanted in waiting:
            try:
                if pause.mode is None:
                    raise CallFailedError("somebody resumed before the running requests had finished")
                if wanted.clear_cache:
                    clear_caches(self._operations, running=pause.frozen)
                if wanted.then is not None:
                    wanted.then()
            except Exception as error:
                routed.append(self.failed_call(call, error))
            else:
                routed.append(self._answer(call))
        return routed

    def _is_empty(self) -> bool:
        """Whether the engine has no request."""
        return len(self._live) == len(self._pause.held)

    def _abort(self, event: Abort) -> list[Routed]:
        event.done = True
        if ids := self._forget_wire_ids(event):
            self._engine.abort_requests(ids)
            self._stats_due = True
        return []

    def _given_up(self, event: GivenUp) -> list[Routed]:
        wire_ids = {i: live.wire_id for i, live in self._live.items() if live.client == event.client}
        ended = [i for i, wire_id in wire_ids.items() if wire_id in event.request_ids]
        for internal in ended:
            self._forget(internal)
        self._engine.abort_requests(ended)
        self._stats_due = True
        routed = self._end_all([i for i in wire_ids if i not in ended]) if event.everything else []
        settled = self._routed(event.client)
        settled.settled = event.request_ids
        return [*routed, settled]

    def _take_aborts(self) -> list[str]:
        taken: list[str] = []
        while self._fast_aborts:
            event = self._fast_aborts.popleft()
            if not event.done:
                taken += self._forget_wire_ids(event)
        self._taken += taken
        return taken

    def _forget_wire_ids(self, event: Abort) -> list[str]:
        internal_ids = []
        for wire_id in event.request_ids:
            internal = self._by_wire.get((event.origin, wire_id))
            if internal is not None:
                self._forget(internal)
                internal_ids.append(internal)
        return internal_ids

    def _forget(self, internal: str) -> _Live:
        live = self._live.pop(internal)
        del self._by_wire[live.origin, live.wire_id]
        if (held := self._pause.held.pop(internal, None)) is not None:
            self._admission.taken(held.size)
        self._admission.finished()
        return live

    def _route(self, outputs: list[EngineCoreOutput]) -> list[Routed]:
        batches: dict[ClientIndex, list[EngineCoreOutput]] = {}
        get_live = self._live.get
        for output in outputs:
            live = get_live(output.request_id)
            if live is None:
                continue  # aborted during the step
            if output.finish_reason is not None:
                self._forget(output.request_id)
                self.achieved += 1
            if live.renamed:
                output.request_id = live.wire_id
            if live.prompt:  # from the first output some front-ends learn how long the prompt was, and nowhere else
                if output.prefill_stats is None:
                    output.prefill_stats = PrefillStats(live.prompt, live.prompt)
                live.prompt = 0
            batch = batches.get(live.client)
            if batch is None:
                batches[live.client] = [output]
            else:
                batch.append(output)
        routed = [self._routed(client, outputs=batch) for client, batch in batches.items()]
        stats = self._take_stats()
        if stats is not None and routed:
            routed[0].message.scheduler_stats = stats
        elif stats is not None:
            routed.append(self._routed(ClientIndex(0), scheduler_stats=stats))
        return routed

    def _take_stats(self) -> SchedulerStats | None:
        self._stats = self._engine.stats() if self._log_stats else None
        return self._stats

    def _call(self, event: Call) -> list[Routed]:
        if self._stopping:
            return [self._answer(event, failure=SHUTTING_DOWN)]
        try:
            result = find_operation(self._operations, event.method, self._name).run(event.args)
        except Exception as error:
            return [self.failed_call(event, error)]
        if isinstance(result, PauseWanted):
            self._pause.waiting.append((event, result))
            return []
        if isinstance(result, Future):
            result.add_done_callback(lambda done: self._post_late(self._late_answer(event, done)))
            return []
        return [self._answer(event, value=result)]

    def _late_answer(self, event: Call, done: Future[Any]) -> Routed:
        try:
            return self._answer(event, value=done.result(timeout=0))
        except BaseException as error:  # a cancelled future raises CancelledError, and the caller must hear of it
            return self.failed_call(event, error)

    def failed_call(self, event: Call, error: BaseException) -> Routed:
        """The answer to a call that failed, or that never came in (any thread)."""
        return self._answer(event, failure=call_failure_text(event.method, error))

    def _answer(self, event: Call, *, value: Any = None, failure: str | None = None) -> Routed:
        answer = UtilityOutput(event.call_id, failure, None if failure is not None else [None, value])
        return Routed(event.client, EngineCoreOutputs(self._rank, [], None, self._clock(), answer), event.method)

    def _executor_failed(self, event: ExecutorFailed) -> list[Routed]:
        cause = event.cause if isinstance(event.cause, BaseException) else None
        if isinstance(cause, MuroError):
            raise cause
        raise EngineDeadError(f"the executor failed: {event.cause!r}", rank=self._rank) from cause

    def _end(self, live: _Live, error: Exception) -> Routed:
        """The final output of a request that failed; the request must be forgotten already."""
        return self._ended(live, failed_output(live.wire_id, error))

    def _ended(self, live: _Live, output: EngineCoreOutput) -> Routed:
        return self._routed(live.client, outputs=[output], finished_requests=[live.wire_id])

    def _routed(self, client: ClientIndex, **parts: Any) -> Routed:
        return Routed(client, EngineCoreOutputs(engine_index=self._rank, timestamp=self._clock(), **parts))
