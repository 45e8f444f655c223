"""The session: a client's whole knowledge of its engines, requests and calls. Pure: no socket, thread, clock or lock.

Calls in, messages out; messages in, outputs to their readers. A shell around it moves the bytes. The rules:

- Each attempt of a request travels under a wire id of its own: caller's id, hyphen, the client's random nonce
  and a count. So an id can be used again at once, two front-ends never collide, and what still comes for an
  attempt that has ended is for an unknown id and vanishes.
- Per rank there is one engine at a time, with a generation. An event that names an older one changes nothing.
  Who they are and which one gets a request is the business of `fleet`.
- A request ends exactly once: with its last output, by the caller's abort, or with the session's error.
- In batches, outputs get their caller's ids when the batch is taken, not when it comes: an abort in between takes
  effect, and a reused id never shows the news of its predecessor.
- Not safe for threads: the shell holds a lock around every method.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from muro.clients.arguments import check_op, check_request, check_size, id_list
from muro.clients.attempt import Attempt, Sink
from muro.clients.calls import PendingCall, PendingCalls
from muro.clients.engine import KnownEngine, again
from muro.clients.fleet import Fleet
from muro.clients.interface import OutputBatch
from muro.config import Limits
from muro.errors import (
    ClientClosedError,
    EngineDeadError,
    InvalidRequestError,
    LocalProtocolError,
    MuroError,
    UsageError,
)
from muro.ids import ClientIndex, EngineRank, Generation, RequestId, WireId
from muro.parallel.balance import Balancer
from muro.wire.control import UtilityRequest
from muro.wire.frames import Frame, rank_of
from muro.wire.handshake import ReadyResponse
from muro.wire.ops import Op
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, OutputError
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

if TYPE_CHECKING:
    from muro.clients.scaling import Scaling

log = logging.getLogger(__name__)

_FIRST_CLIENT = ClientIndex(0)
_LARGEST = Limits().max_message_bytes

Message = list[Frame]
"""Frames for the input socket, the engine's identity first."""

StatsListener = Callable[[EngineRank, SchedulerStats], None]


class Unreadable(msgspec.Struct, frozen=True):
    """A message that is not the protocol, and the ends of those requests in it that can be told."""

    ends: EngineCoreOutputs


class Session:
    """One client's view of `engines` (by rank).

    Args:
        engines: all ranks.
        nonce: random letters that no other client of these engines has.
        balancer: which of them gets a request, see `Fleet`.
        client_index: which output socket of theirs is ours.
        first_call: see `PendingCalls`.
        largest: bytes of one message, over which an engine's socket may drop the connection.
    """

    def __init__(
        self,
        engines: Mapping[EngineRank, KnownEngine],
        *,
        nonce: str,
        balancer: Balancer | None = None,
        client_index: ClientIndex = _FIRST_CLIENT,
        first_call: int = 1,
        largest: int = _LARGEST,
    ) -> None:
        self.fleet = Fleet(engines, balancer)
        self.engines = self.fleet.engines
        self.calls = PendingCalls(first_call)
        self.error: MuroError | None = None
        self.on_stats: StatsListener | None = None
        self.scaling: Scaling | None = None
        """The change of the number of engines that is under way."""
        self.on_leaving_less: Callable[[], object] = lambda: None
        """Called when an engine that is to leave has a request less."""
        self.late_outputs = 0
        self.wave = 0  # of lockstep engines
        self._client_index = client_index
        self._nonce = nonce
        self._largest = largest
        self._attempts = 0
        self._batches: bool | None = None
        self._live: dict[str, Attempt] = {}
        self._by_caller: dict[str, Attempt] = {}
        self._unread: deque[EngineCoreOutputs] = deque()

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._live)

    @property
    def has_batches(self) -> bool:
        """Whether there is a batch to take."""
        return bool(self._unread)

    def read_in_batches(self, batches: bool) -> None:
        """Say how this client is read; the first word counts. Raises UsageError for another one."""
        if self._batches is None:
            self._batches = batches
        elif self._batches is not batches:
            used, wanted = ("get_outputs", "generate") if self._batches else ("generate", "get_outputs")
            raise UsageError(f"this client is read with {used}; for {wanted}, make a second client")

    def check(self) -> None:
        """Raises the error that ended this session, if one did."""
        if self.error is not None:
            raise again(self.error) from self.error.__cause__

    def doom(self, dying: Mapping[EngineRank, EngineDeadError]) -> None:
        """These have died: no request goes there any more. What they had sent may still come, until `died`."""
        self.fleet.doom(dying)

    def refused(self, message: Message, dying: Mapping[EngineRank, EngineDeadError], *, elsewhere: bool) -> None:
        """A message was not taken. Raises why, unless its engine has died and another one will do (`elsewhere`)."""
        self.doom(dying)
        self.check()
        engine = self.engines[rank_of(message[0])]
        if engine.open:
            raise EngineDeadError(f"engine {engine.rank} is not connected (any more)", rank=engine.rank)
        if not elsewhere:
            engine.check_serving()

    def check_serving(self, rank: int | None = None) -> None:
        """Raises the error that ended this session, or why no engine (or not that of `rank`) takes requests."""
        self.check()
        self.fleet.check_serving(rank)

    def add(self, request: EngineCoreRequest, sink: Sink | None, now: float) -> tuple[Attempt, Message]:
        """Take a request; `now` is the time of day in Unix seconds. Without a sink its outputs go into batches.

        Raises InvalidRequestError (nothing changed then), UsageError, and the error that ended the session.
        """
        self.check()
        check_request(request)
        self.read_in_batches(sink is None)
        request_id = RequestId(request.request_id)
        if request_id in self._by_caller:
            what = f"request id {request_id!r} is already in flight on this client"
            raise InvalidRequestError(what, request_id=request_id, param="request_id")
        engine = self.fleet.choose(request, now)
        self._attempts += 1
        wire_id = WireId(f"{request_id}-{self._nonce}{self._attempts:x}")
        outgoing = copy.copy(request)
        outgoing.request_id = wire_id
        outgoing.client_index = self._client_index
        outgoing.external_req_id = request.external_req_id or request_id
        outgoing.arrival_time = request.arrival_time or now
        outgoing.current_wave = request.current_wave or self.wave
        try:
            frames = check_size(engine.encoder.add(outgoing), self._largest)
        except LocalProtocolError as error:
            self.fleet.ended(engine)
            raise InvalidRequestError(f"the request cannot be sent: {error.message}", request_id=request_id) from error
        attempt = Attempt(request_id, wire_id, engine, sink)
        self._live[wire_id] = self._by_caller[request_id] = attempt
        return attempt, [engine.identity, *frames]

    def abort(self, request_ids: Iterable[str]) -> list[Message]:
        """End requests for their caller; unknown ids are ignored. Streams get a last output that says ABORT."""
        ids = dict.fromkeys(id_list(request_ids))
        ended = [attempt for i in ids if (attempt := self._by_caller.get(i)) is not None]
        messages = self.drop(ended)
        for attempt in ended:
            if attempt.sink is not None:
                attempt.sink.put(EngineCoreOutput(attempt.request_id, [], finish_reason=FinishReason.ABORT))
        return messages

    def abort_all(self) -> list[Message]:
        """End everything in flight, as `abort` does; in batches too, the last outputs are delivered."""
        if not self._batches:
            return self.abort(list(self._by_caller))
        finals = [EngineCoreOutput(wire_id, [], finish_reason=FinishReason.ABORT) for wire_id in self._live]
        messages = self._abort_messages(self._live.values())
        self._unread.append(EngineCoreOutputs(outputs=finals))
        return messages

    def drop(self, attempts: Iterable[Attempt]) -> list[Message]:
        """Forget attempts whose readers are gone; those that have ended are ignored."""
        live = [attempt for attempt in dict.fromkeys(attempts) if attempt.wire_id in self._live]
        for attempt in live:
            self._forget(attempt)
        return self._abort_messages(live)

    def call(
        self, op: Op[Any] | str, args: tuple[Any, ...], rank: int | None, done: Callable[[], object]
    ) -> tuple[PendingCall, list[Message]]:
        """Call an operation on one engine or on all (None); `done` is called once it is over.

        Raises InvalidRequestError for what cannot be sent, and the error that ended the session.
        """
        self.check()
        check_op(op)
        staying = [engine for engine in self.engines.values() if not engine.leaving]
        engines = staying if rank is None else [self.fleet.named(rank)]
        method, known = (op, None) if isinstance(op, str) else (op.name, op)
        call, messages = PendingCall(method, known, done), []
        try:
            values = list(args) if known is None else known.check_args(args)
            for engine in engines:
                engine.check_serving()
                request = UtilityRequest(self._client_index, self.calls.expect(call, engine.rank), method, values)
                messages.append([engine.identity, *check_size(engine.encoder.call(request), self._largest)])
        except LocalProtocolError as error:
            self.calls.end(call, error)
            raise InvalidRequestError(f"operation {method!r} cannot be called so: {error.message}") from error
        except EngineDeadError as error:
            self.calls.end(call, error)
            raise
        return call, messages

    def receive(self, message: EngineCoreOutputs) -> None:
        """Take a message of an engine: outputs go to their sinks, or wait as a batch."""
        if message.utility_output is not None:
            self.calls.answer(message.utility_output)
            return
        if message.scheduler_stats is not None:
            self._report(message.engine_index, message.scheduler_stats)
        if self._batches:
            if message.outputs or message.scheduler_stats is not None:
                self._unread.append(message)
            return
        find = self._live.get
        for output in message.outputs:
            attempt = find(output.request_id)
            if attempt is None:
                self.late_outputs += 1
                continue
            output.request_id = attempt.request_id
            if output.finish_reason is not None:
                self._forget(attempt)
            attempt.sink.put(output)  # type: ignore[union-attr]  # only batches go without sinks

    def refuse(self, message: Unreadable) -> list[Message]:
        """End the requests of a message that cannot be read; returns what to tell their engine.

        It would compute on: it does not know that its words are lost.
        """
        outputs = message.ends.outputs
        live = [self._live[output.request_id] for output in outputs if output.request_id in self._live]
        messages = self._abort_messages(live)
        self.receive(message.ends)
        return messages

    def take_batch(self) -> OutputBatch | None:
        """The next batch, or None. Raises UsageError if the client is read with `generate`."""
        self.read_in_batches(True)
        find = self._live.get
        while self._unread:
            message = self._unread.popleft()
            outputs = []
            for output in message.outputs:
                attempt = find(output.request_id)
                if attempt is None:
                    self.late_outputs += 1
                    continue
                output.request_id = attempt.request_id
                if output.finish_reason is not None:
                    self._forget(attempt)
                outputs.append(output)
            if outputs or message.scheduler_stats is not None:
                rank = EngineRank(message.engine_index)
                return OutputBatch(outputs, rank, message.timestamp, message.scheduler_stats)
        return None

    def died(self, rank: EngineRank, generation: int, error: MuroError) -> bool:
        """An engine has died: everything on it ends with `error`. Whether that was news.

        Requests that are read in batches end in a batch if the engine is being restarted; otherwise it will be given
        up, and that says what becomes of them.
        """
        engine = self.fleet.died(rank, generation, error)
        if engine is None:
            return False
        self.calls.end_all(again(error), rank)
        if engine.restarting:
            self._end_in_batch(engine, error)
        self._fail(self._on(engine), error)
        self._report(rank, SchedulerStats())  # nothing runs there any more, and nobody else will say so
        return True

    def let_go(self, rank: EngineRank, error: EngineDeadError) -> list[Message]:
        """An engine that was leaving is about to be ended: what it has not finished ends with `error`.

        Returns what to tell it.
        """
        engine = self.engines[rank]
        messages = self._abort_messages(self._on(engine))
        self.fleet.left(rank, error)
        self.calls.end_all(again(error), rank)
        self._end_in_batch(engine, error)
        self._fail(self._on(engine), error)
        self._report(rank, SchedulerStats())
        return messages

    def succeeded(self, rank: EngineRank, generation: Generation, ready: ReadyResponse | None) -> None:
        """A later generation of a rank serves; nothing happens if that is known."""
        self.fleet.succeeded(rank, generation, ready)

    def given_up(self, rank: EngineRank | None, error: MuroError) -> None:
        """An engine that has died gets no successor (None: nobody knows which one).

        The others go on; if none serves or comes back, everything ends.
        """
        if rank is None or self.fleet.hopeless:
            self.end(error)
        elif (engine := self.engines.get(rank)) is not None and not engine.serving:
            log.error("%s; the other engines go on", error.message)
            self._end_in_batch(engine, error)

    def reported(self, counts: Sequence[Sequence[int | float]], now: float) -> None:
        """The coordinator's counts of all ranks have come; `now` as for `add`."""
        self.fleet.balancer.report(counts, now)

    def end(self, error: MuroError) -> None:
        """Everything ends with `error`, and so does every later use; only the first call counts."""
        if self.error is not None:
            return
        self.error = error
        self.calls.end_all(again(error))
        self._fail(list(self._live.values()), error)

    def close(self) -> list[Message]:
        """The owner wants no more: everything ends with ClientClosedError; returns what to tell the engines."""
        if isinstance(self.error, ClientClosedError):
            return []
        messages = self._abort_messages(self._live.values()) if self.error is None else []
        self.error = None
        self.end(ClientClosedError("the client was closed"))
        self._unread.clear()
        return messages

    def _report(self, rank: int, stats: SchedulerStats) -> None:
        try:
            if self.on_stats is not None:
                self.on_stats(EngineRank(rank), stats)
        except Exception:
            log.exception("the listener for statistics failed")

    def _fail(self, attempts: Iterable[Attempt], error: MuroError) -> None:
        for attempt in attempts:
            if attempt.sink is not None:  # batches that have come are still taken; then the reader gets the error
                self._forget(attempt)
                attempt.sink.fail(again(error))

    def _end_in_batch(self, engine: KnownEngine, error: MuroError) -> None:
        """Requests of a dead engine that are read in batches end there, and may be sent again."""
        bereft = self._on(engine)
        if self._batches and bereft:
            why = OutputError(error.code, error.message, retryable=True)
            ends = [EngineCoreOutput(a.wire_id, [], finish_reason=FinishReason.ERROR, error=why) for a in bereft]
            self._unread.append(EngineCoreOutputs(engine_index=engine.rank, outputs=ends))

    def _on(self, engine: KnownEngine) -> list[Attempt]:
        return [attempt for attempt in self._live.values() if attempt.engine is engine]

    def _forget(self, attempt: Attempt) -> None:
        del self._live[attempt.wire_id]
        del self._by_caller[attempt.request_id]
        self.fleet.ended(attempt.engine)
        if attempt.engine.leaving:
            self.on_leaving_less()

    def _abort_messages(self, attempts: Iterable[Attempt]) -> list[Message]:
        by_engine: dict[EngineRank, list[str]] = {}
        for attempt in attempts:
            if attempt.engine in self.fleet and attempt.engine.serving:
                by_engine.setdefault(attempt.engine.rank, []).append(attempt.wire_id)
        engines = self.engines
        return [[engines[rank].identity, *engines[rank].encoder.abort(ids)] for rank, ids in by_engine.items()]
