"""AsyncMPClient: engines in processes of their own, for one asyncio loop. No thread but that of their supervisor.

Outputs are read in the loop's thread and put straight where their readers wait. Invariants:

- Everything but `close` happens in the thread of the loop that ran when the client was made.
- Submitting never awaits: a request is either refused with an error or known to the session and sent, so a
  cancelled caller leaves nothing half done.
- A stream that loses its reader aborts its request. The collector may notice that in any thread and in the
  midst of anything, so the attempt is only put into a queue and the loop woken.
- The loop holds the client weakly: a client that nobody holds is finalized although its sockets are watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from muro.clients.aio_stream import AsyncStream, Feed
from muro.clients.arguments import check_timeout
from muro.clients.attempt import Attempt
from muro.clients.closing import close_in_loop, finalize_in_loop, in_thread, release_in_loop, runs_in
from muro.clients.coordination import Coordination
from muro.clients.hearing import hear, hear_coordinator
from muro.clients.interface import NO_OUTPUTS, EngineStatus, OutputBatch
from muro.clients.link import Link
from muro.clients.parts import Watcher
from muro.clients.scaling import DRAIN_TIMEOUT, Scaling
from muro.clients.session import Message, Session, StatsListener, Unreadable
from muro.clients.silence import TICK
from muro.clients.status import engine_statuses
from muro.clients.weak import weakly
from muro.errors import CallTimeoutError, EngineDeadError, UsageError
from muro.ids import EngineRank
from muro.launch.events import Event
from muro.transport.aio import AsyncReader
from muro.transport.sockets import Frame
from muro.wire.codec import Marker
from muro.wire.ops import Op
from muro.wire.request import EngineCoreRequest

Reply = TypeVar("Reply")

_MOST = 4096
"""Messages that are read at once before a death is told; the others of a flood come after it."""


class AsyncMPClient:
    """Made by `connect.connect_async`; see `interface.AsyncEngineCoreClient` for what its methods promise."""

    def __init__(self, session: Session, link: Link) -> None:
        self._session = session
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.max_unread_tokens: int | None = None
        self._reader = AsyncReader(self._loop)
        self._batch_readers: deque[asyncio.Future[None]] = deque()
        self._patient: deque[asyncio.Future[None]] = deque()
        """Who waits for an engine that serves."""
        self._gone: deque[Attempt] = deque()
        self._finalizer = weakref.finalize(self, finalize_in_loop, self._loop, self._reader, link)

    def start(self) -> AsyncMPClient:
        """Begin to read. Called once, by the factory, in the client's loop."""
        self._reader.watch(self._link.outputs, weakly(self._on_frames))
        if self._link.coordination is not None:
            self._reader.watch(self._link.coordination.ear, weakly(self._on_publication, self._link.coordination))
        self._link.open(_waker(self._loop, weakly(self._on_events)))
        self._listen()
        return self

    def add_request(self, request: EngineCoreRequest) -> EngineRank:
        """See `EngineCoreClient.add_request`."""
        self._check_here()
        return self._submit(request, None).engine.rank

    async def get_outputs(self, timeout: float | None = None) -> OutputBatch:  # noqa: ASYNC109 twin of the other client
        """Wait for the next batch, at most `timeout` seconds (None: for ever); an empty one if time is up."""
        self._check_here()
        check_timeout(timeout)
        deadline = None if timeout is None else self._loop.time() + timeout
        waited = False
        while (batch := self._session.take_batch()) is None:
            self._session.check()
            if waited and deadline is not None and self._loop.time() >= deadline:
                return NO_OUTPUTS
            await self._next_batch(deadline)
            waited = True
        return batch

    def generate(self, request: EngineCoreRequest) -> AsyncStream:
        """Send a request; returns the stream of its outputs. Raises as `add_request`."""
        self._check_here()
        feed = Feed(self.max_unread_tokens)
        attempt = self._submit(request, feed)
        feed.on_overrun = weakly(self.reader_gone, attempt)
        return AsyncStream(self, attempt, feed, self._loop)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests; ids that are not in flight are ignored. A stream of one of them ends with ABORT."""
        self._check_here()
        for message in self._session.abort(request_ids):
            self._link.send(message)

    async def call(
        self,
        op: Op[Reply] | str,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109
        engine: int | None = None,
    ) -> Reply:
        """Run an operation on one engine, or on all (None); returns the answer of the lowest rank.

        Cancelling it gives up waiting; the operation may still happen. Raises UnknownOperationError,
        CallFailedError, CallTimeoutError, InvalidRequestError if an argument cannot be sent.
        """
        answers = await self._call(op, args, timeout, engine)
        return cast(Reply, answers[min(answers)])

    async def call_all(
        self,
        op: Op[Reply] | str,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> dict[EngineRank, Reply]:
        """As `call` on all engines; returns every answer."""
        return await self._call(op, args, timeout, None)

    def engines(self) -> list[EngineStatus]:
        """How each engine is, by rank."""
        return engine_statuses(self._session, self._link)

    @property
    def supervisor(self) -> Watcher:
        """For others who want to hear of the engines' processes."""
        return self._link.supervisor

    def load_counted_at(self) -> float | None:
        """When, on the monotonic clock, the coordinator last said how much all engines have; None if it never did."""
        coordination = self._link.coordination
        return None if coordination is None else coordination.counted_at

    def observe_stats(self, listener: StatsListener | None) -> None:
        """Call `listener(rank, stats)` for every report of an engine, and with empty statistics when one has gone."""
        self._session.on_stats = listener

    def check_health(self) -> None:
        """Raises EngineDeadError or ClientClosedError if no request can be served. Asks the engine nothing."""
        self._check_here()
        self._link.look()
        self._session.doom(self._link.dying())
        self._session.check_serving()

    async def wait_serving(self, timeout: float | None = None, *, engine: int | None = None) -> None:  # noqa: ASYNC109
        """Return when an engine serves, or that of one rank.

        Raises EngineDeadError: with `restarting` if `timeout` seconds are over, without it if there will be none.
        """
        self._check_here()
        check_timeout(timeout)
        deadline = None if timeout is None else self._loop.time() + timeout
        while True:
            self._session.doom(self._link.dying())
            try:
                return self._session.check_serving(engine)
            except EngineDeadError as error:
                if not error.restarting or (deadline is not None and self._loop.time() >= deadline):
                    raise
            await self._next(self._patient, deadline)

    async def scale(self, engines: int, *, drain_timeout: float | None = DRAIN_TIMEOUT) -> None:
        """See `EngineCoreClient.scale`; cancelling it is as an interrupt there."""
        self._check_here()
        scaling = Scaling(self._session, self._link, engines, drain_timeout, self._loop.time())
        scaling.begin(self._wake_all)
        try:
            while not scaling.advance(self._loop.time()):
                left = scaling.left(self._loop.time())
                await self._next(self._patient, None if left is None else self._loop.time() + left)
        finally:
            scaling.end()
        scaling.check()

    def close(self, timeout: float | None = None) -> None:
        """Stop the engines that were started here and release everything. Blocks; any thread may call it."""
        check_timeout(timeout)
        if runs_in(self._loop) or self._loop.is_closed() or not self._loop.is_running():
            self._end()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed just now
                self._loop.call_soon_threadsafe(self._end)
        close_in_loop(self._loop, self._reader, self._link, timeout)
        self._finalizer.detach()

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Close without blocking the loop. Once begun it goes on to its end, cancelled or not."""
        if not runs_in(self._loop):
            raise UsageError("this client belongs to another event loop; from elsewhere, call close()")
        check_timeout(timeout)
        self._end()
        try:
            await in_thread(lambda: self._link.stop(timeout))
        finally:
            release_in_loop(self._loop, self._reader, self._link, patience=0.0)
            self._finalizer.detach()

    async def __aenter__(self) -> AsyncMPClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def reader_gone(self, attempt: Attempt) -> None:
        """Take note that nobody reads this attempt any more (any thread, any moment)."""
        self._gone.append(attempt)
        with contextlib.suppress(RuntimeError):  # a closed loop: then the engine is being stopped too
            self._loop.call_soon_threadsafe(self._drop_gone)

    def _check_here(self) -> None:
        if not runs_in(self._loop):
            self._link.check_process()
            raise UsageError("this client belongs to another event loop; make one of its own in each loop")
        if self._gone:
            self._drop_gone()  # their ids may be wanted again
        if (due := self._link.due()) is not None:
            if due == 0:
                self._on_events()
            self._session.doom(self._link.dying())

    def _submit(self, request: EngineCoreRequest, feed: Feed | None) -> Attempt:
        attempt, message = self._session.add(request, feed, time.time())
        while not self._link.send(message):
            self._session.drop([attempt])
            self._refused(message, elsewhere=True)
            attempt, message = self._session.add(request, feed, time.time())
        return attempt

    def _refused(self, message: Message, *, elsewhere: bool) -> None:
        """See `Session.refused`."""
        self._link.refused(message)
        self._session.refused(message, self._link.dying(), elsewhere=elsewhere)

    def _drop_gone(self) -> None:
        gone = []
        while self._gone:
            gone.append(self._gone.popleft())
        for message in self._session.drop(gone):
            self._link.send(message)

    async def _call(
        self,
        op: Op[Any] | str,
        args: tuple[Any, ...],
        timeout: float | None,  # noqa: ASYNC109
        engine: int | None,
    ) -> dict[EngineRank, Any]:
        self._check_here()
        check_timeout(timeout)
        over: asyncio.Future[None] = self._loop.create_future()
        call, messages = self._session.call(op, args, engine, lambda: _finish(over))
        timer = None if timeout is None else self._loop.call_later(timeout, _finish, over)
        try:
            for message in messages:
                if not self._link.send(message):
                    self._refused(message, elsewhere=False)
            await over
            if not call.over:
                raise CallTimeoutError(f"no answer to {call.method!r} within {timeout} s", method=call.method)
            return call.result()
        finally:
            if timer is not None:
                timer.cancel()
            self._session.calls.end(call, None)

    async def _next_batch(self, deadline: float | None) -> None:
        try:
            await self._next(self._batch_readers, deadline)
        except asyncio.CancelledError:
            self._wake_batch_readers(1)  # the news that was meant for us is another reader's now
            raise

    async def _next(self, waiting: deque[asyncio.Future[None]], deadline: float | None) -> None:
        """Wait in a queue until somebody wakes it, or for the deadline."""
        ready: asyncio.Future[None] = self._loop.create_future()
        waiting.append(ready)
        timer = None if deadline is None else self._loop.call_at(deadline, _finish, ready)
        try:
            await ready
        finally:
            if timer is not None:
                timer.cancel()
            with contextlib.suppress(ValueError):
                waiting.remove(ready)

    def _wake_batch_readers(self, most: int | None = None) -> None:
        woken = 0
        while self._batch_readers and woken != most:
            woken += _finish(self._batch_readers.popleft())

    def _on_frames(self, frames: list[Frame]) -> None:
        message = self._link.decode(frames)
        if message is None:
            return
        if isinstance(message, Marker):
            self._link.notice()
            return
        if isinstance(message, Unreadable):
            for word in self._session.refuse(message):
                self._link.send(word)
        else:
            self._session.receive(message)
        if self._batch_readers:
            self._wake_batch_readers(1)

    def _on_publication(self, coordination: Coordination, frames: list[Frame]) -> None:
        if (news := coordination.hear(frames)) is not None:
            hear_coordinator(news, self._session, self._link, time.time())

    def _listen(self) -> None:
        """Judge engines that are silent, as long as there is one to judge."""
        if (silent := self._link.silent) and not self._session.error:
            silent.look()
            self._loop.call_later(TICK, weakly(self._listen))

    def _on_events(self) -> None:
        """Something has happened to engines; what they had sent before is read first."""
        due = self._link.due()
        if due:
            self._loop.call_later(due, weakly(self._on_events))
        if due != 0:
            return
        now = self._link.now()
        self._reader.read_now(self._link.outputs, _MOST)
        for event in self._link.events(now):
            self._apply(event)

    def _apply(self, event: Event) -> None:
        hear(event, self._session, self._link)
        self._wake_all()

    def _end(self) -> None:
        """Nothing more is accepted or delivered; the engines hear that their requests are over."""
        for message in self._session.close():
            self._link.send(message)
        self._wake_all()

    def _wake_all(self) -> None:
        self._wake_batch_readers()
        while self._patient:
            _finish(self._patient.popleft())


def _waker(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> Callable[[], None]:
    """What calls `wake` in the loop, from any thread."""

    def call() -> None:
        with contextlib.suppress(RuntimeError):  # a closed loop: nobody waits any more
            loop.call_soon_threadsafe(wake)

    return call


def _finish(waiting: asyncio.Future[None]) -> bool:
    """Wake who waits; whether somebody did."""
    if waiting.done():
        return False
    waiting.set_result(None)
    return True
