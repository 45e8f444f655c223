"""Streams that outlive their engine, over an asyncio client: `AsyncRequests` stands where the client would stand.

What may go on and how is decided in `replay`, who may run at which time in `quarantine`; here it is waited for.
Invariants:

- Everything happens in the loop of the client. The record of what was delivered is what a stream has handed out.
- A stream waits only inside `__anext__`: one whose reader asks for nothing more is not sent again, and holds nobody up,
  not even in a trial.
- However a stream ends, its place in the quarantine is given back once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import weakref
from collections.abc import AsyncIterator, Hashable, Iterable

from muro.clients.interface import AsyncEngineCoreClient, AsyncOutputStream
from muro.errors import EngineDeadError, MuroError, UsageError
from muro.ids import EngineRank, Generation
from muro.llm import replay
from muro.llm.quarantine import Quarantine
from muro.llm.replay import DeathPolicy
from muro.observe.metrics import ServingMetrics
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest

log = logging.getLogger(__name__)

READER_PATIENCE = 0.25
"""Seconds that others wait for the reader of a request that is being tried."""


class AsyncRequests:
    """Sends requests again when they may be.

    Args:
        client: read with `generate` by nobody else.
        policy: what to do.
        metrics: where replays are counted.
    """

    def __init__(self, client: AsyncEngineCoreClient, policy: DeathPolicy, metrics: ServingMetrics) -> None:
        self.client = client
        self.policy = policy
        self.metrics = metrics
        self.quarantine = Quarantine()
        self._streams: weakref.WeakValueDictionary[str, ReplayedStream] = weakref.WeakValueDictionary()
        self._keys = itertools.count()
        self._turns: dict[Hashable, asyncio.Future[None]] = {}

    @property
    def replays(self) -> bool:
        """Whether running requests go on after a death."""
        return self.policy.on_engine_death == "replay"

    def generate(self, request: EngineCoreRequest) -> AsyncOutputStream:
        """Send a request, or let it wait for an engine that is being restarted. Raises as the client's `generate`."""
        if self.replays:
            stream = self._stream(request)
            stream.begin()
            return stream
        try:
            return self.client.generate(request)
        except EngineDeadError as death:
            if not self.waits_for(death):
                raise
            return self._stream(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests, on an engine or waiting for one; a stream of one of them ends with ABORT."""
        ids = list(request_ids)
        for request_id in ids:
            if (stream := self._streams.get(request_id)) is not None:
                stream.abort()
        self.client.abort(ids)

    def waits_for(self, death: EngineDeadError) -> bool:
        """Whether there will be another engine, and patience until then."""
        return death.restarting and self.policy.restart_wait > 0

    def goes_on(self, death: EngineDeadError) -> bool:
        """Whether there is another engine already, or will be."""
        if self.waits_for(death):
            return True
        try:
            self.client.check_health()
        except MuroError:
            return False
        return self.replays

    async def turn(self, key: int) -> None:
        """Wait until somebody may run who could not before."""
        self._turns[key] = turn = asyncio.get_running_loop().create_future()
        try:
            await turn
        finally:
            del self._turns[key]

    def wake(self) -> None:
        """Let those look again who may run now."""
        if not self._turns or self.quarantine.trying:
            return
        first = self.quarantine.first
        for key in list(self._turns) if first is None else [first]:
            if (turn := self._turns.get(key)) is not None and not turn.done():
                turn.set_result(None)

    def expect(self, stream: ReplayedStream) -> None:
        """A stream that is being tried has handed something out: its reader must come back soon."""
        loop = asyncio.get_running_loop()
        loop.call_later(READER_PATIENCE, self._excuse, weakref.ref(stream), stream.num_delivered)

    def _excuse(self, reference: weakref.ref[ReplayedStream], num_delivered: int) -> None:
        stream = reference()
        if stream is None or stream.asked or stream.num_delivered != num_delivered:
            return  # it has gone, is waited for, or has been
        if self.quarantine.excuse(stream.key):
            self.wake()

    def leave(self, key: int, request_id: str) -> None:
        """A stream has ended, or was lost."""
        self.quarantine.leave(key)
        if (stream := self._streams.get(request_id)) is not None and stream.key == key:
            del self._streams[request_id]
        self.wake()

    def _stream(self, request: EngineCoreRequest) -> ReplayedStream:
        key = next(self._keys)
        self.quarantine.enter(key)
        stream = self._streams[request.request_id] = ReplayedStream(self, key, request)
        return stream


class ReplayedStream:
    """See `interface.AsyncOutputStream`: outputs of one request, of however many attempts, each once."""

    __slots__ = (
        "__weakref__", "_aborted", "_bereft", "_death", "_delivered", "_limit", "_loop", "_open", "_owner",
        "_request", "_stream", "asked", "key",
    )  # fmt: skip

    def __init__(self, owner: AsyncRequests, key: int, request: EngineCoreRequest) -> None:
        self._owner = owner
        self.key = key
        self._request = request
        self._delivered: list[int] = []
        self._stream: AsyncOutputStream | None = None
        self._death: EngineDeadError | None = None
        self._bereft = False
        self._limit: asyncio.Timeout | None = None
        self._aborted = False
        self._open = True
        self._loop = asyncio.get_running_loop()
        self.asked = False
        """Whether its reader waits for more."""

    @property
    def engine(self) -> tuple[EngineRank, Generation] | None:
        """See `interface.AsyncOutputStream.engine`; None while it waits."""
        return None if self._stream is None else self._stream.engine

    @property
    def num_delivered(self) -> int:
        """Tokens that its reader has got."""
        return len(self._delivered)

    def begin(self) -> None:
        """Send the request, if that needs no waiting. Raises what refuses it; then the stream has ended."""
        try:
            if self._owner.quarantine.may_run(self.key):
                self._send()
        except EngineDeadError as death:
            self._mourn(death)
        except BaseException:
            self._end()
            raise

    def abort(self) -> None:
        """Let it end with ABORT, if it is on no engine."""
        self._aborted = True
        self._interrupt()

    def pending(self) -> list[EngineCoreOutput]:
        """See `interface.AsyncOutputStream.pending`."""
        return [] if self._stream is None else [self._take(output) for output in self._stream.pending()]

    async def aclose(self) -> None:
        """Abort the request if it has not ended."""
        stream = self._stream
        self._end()
        if stream is not None:
            await stream.aclose()

    def __aiter__(self) -> AsyncIterator[EngineCoreOutput]:
        return self

    async def __anext__(self) -> EngineCoreOutput:
        self.asked = True
        try:
            while self._open:
                if self._stream is None and not await self._sent():
                    break
                try:
                    return self._take(await self._stream.__anext__())  # type: ignore[union-attr]  # it was sent
                except EngineDeadError as death:
                    self._lost(death)
        except UsageError:  # a second reader: the first one goes on
            raise
        except BaseException:
            self._end()
            raise
        finally:
            self.asked = False
        if not self._open:
            raise StopAsyncIteration
        return self._take(EngineCoreOutput(self._request.request_id, [], finish_reason=FinishReason.ABORT))

    def __del__(self) -> None:
        if self._open:
            with contextlib.suppress(RuntimeError):  # a closed loop
                self._loop.call_soon_threadsafe(self._owner.leave, self.key, self._request.request_id)

    async def _sent(self) -> bool:
        """Wait until an attempt is on its way; false if the request was aborted or closed meanwhile."""
        if self._limit is not None:
            raise UsageError(f"the stream of request {self._request.request_id!r} is read by another task already")
        try:
            async with asyncio.timeout(None) as self._limit:
                while self._open and not self._aborted:
                    if self._bereft:
                        await self._serving(self._limit)
                    elif not self._owner.quarantine.may_run(self.key):
                        await self._owner.turn(self.key)
                    else:
                        self.begin()
                        self._owner.wake()  # several may be tried at once
                        if self._stream is not None:
                            return True
        except TimeoutError:
            if self._open and not self._aborted:
                raise self._impatient() from self._death
        finally:
            self._limit = None
        return False

    async def _serving(self, limit: asyncio.Timeout) -> None:
        """Wait for an engine that may take it, no longer than the policy says."""
        limit.reschedule(self._loop.time() + self._owner.policy.restart_wait)
        await self._owner.client.wait_serving(engine=self._request.data_parallel_rank)
        limit.reschedule(None)
        self._bereft = False

    def _send(self) -> None:
        self._check()
        stream = self._owner.client.generate(replay.continued(self._request, self._delivered))
        if stream.engine is not None:
            self._owner.quarantine.began(self.key, stream.engine)
        self._stream = stream

    def _take(self, output: EngineCoreOutput) -> EngineCoreOutput:
        """Hand it out: from now on it is delivered."""
        if output.new_token_ids:
            self._delivered += output.new_token_ids
            if self._owner.quarantine.delivered(self.key, len(output.new_token_ids)):
                self._owner.wake()
            elif self._owner.quarantine.is_tried(self.key):
                self._owner.expect(self)
        if output.finish_reason is not None:
            self._end()
        return output

    def _lost(self, death: EngineDeadError) -> None:
        """The engine under it has died: it goes to another one at once, or waits for the successor.

        Raises if the request cannot go on.
        """
        owner, stream = self._owner, self._stream
        self._stream = None
        if not owner.replays or stream is None:
            raise death
        if stream.engine is not None and owner.quarantine.died(stream.engine, death):
            owner.wake()
        owner.quarantine.ask(self.key)
        if (verdict := owner.quarantine.verdict(self.key)) is not None:
            owner.metrics.quarantined += 1
            log.error("request %s is quarantined: %s", self._request.request_id, verdict)
            raise verdict
        self._mourn(death)
        self._check()
        owner.metrics.replayed += 1

    def _mourn(self, death: EngineDeadError) -> None:
        """Remember why it is on no engine. Raises if there will be none; then the stream has ended."""
        if not self._owner.goes_on(death):
            self._end()
            raise death
        self._death = death.with_traceback(None)  # its frames hold this stream
        self._bereft = True

    def _check(self) -> None:
        """Raises RequestFailedError if the request cannot go on where it is."""
        if self._delivered:
            engines = [status.ready for status in self._owner.client.engines() if status.ready is not None]
            if (why := replay.obstacle(self._request, len(self._delivered), engines)) is not None:
                raise replay.cannot_continue(self._request.request_id, len(self._delivered), why, self._death)

    def _impatient(self) -> EngineDeadError:
        what = f"no engine was there within {self._owner.policy.restart_wait:g} s (restart_wait)"
        return EngineDeadError(what if self._death is None else f"{what}. {self._death.message}", restarting=True)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._stream = None
            self._owner.leave(self.key, self._request.request_id)
            self._interrupt()

    def _interrupt(self) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._loop.time())
