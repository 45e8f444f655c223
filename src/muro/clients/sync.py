"""The client for threads; its engines are in processes of their own, or in this one. No thread of its own.

Whoever waits receives, for everybody (`clients.seat`). Invariants:

- One lock guards the session and the way to the engines; it is held for the time of a bookkeeping, never
  while waiting. News of the engines are taken by the holder of the seat.
- Ctrl-C: a wait that is interrupted ends its own request or call. If the interrupt hits the few microseconds in
  which news are taken in, nobody can say whose outputs were lost, so everything in flight ends with ABORT.
  Either way the client stays usable, and later requests see nothing of earlier ones.
- A stream that loses its reader aborts its request. The collector may notice that at any moment, so the attempt
  is put into a queue, which whoever leaves the lock empties.
- In a signal handler, what would have to wait for the code under it is refused with UsageError; `close` does
  what it can, and a thread of its own the rest.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Self, TypeVar, cast

from muro.clients.arguments import check_timeout
from muro.clients.attempt import Attempt
from muro.clients.calls import PendingCall
from muro.clients.hearing import hear, hear_coordinator
from muro.clients.interface import NO_OUTPUTS, EngineStatus, OutputBatch
from muro.clients.scaling import DRAIN_TIMEOUT, Scaling
from muro.clients.seat import Seat, Waiter
from muro.clients.session import Message, Session, StatsListener, Unreadable
from muro.clients.status import engine_statuses
from muro.clients.sync_engines import Engines, NewsSource
from muro.clients.sync_stream import Feed, SyncStream
from muro.errors import CallTimeoutError, EngineDeadError, UsageError
from muro.ids import EngineRank
from muro.launch.events import Event
from muro.wire.coordination import Publication
from muro.wire.ops import Op
from muro.wire.output import EngineCoreOutputs
from muro.wire.request import EngineCoreRequest

Reply = TypeVar("Reply")

_CLOSE_PATIENCE = 2.0
"""Seconds that a receiving thread gets to leave the seat when another one closes the client."""


class ThreadsClient:
    """See `interface.EngineCoreClient` for what its methods promise. Made by `connect.connect` and `inproc`."""

    def __init__(self, session: Session, engines: Engines, news: NewsSource) -> None:
        self._session = session
        self._link = engines
        self._news = news
        self._lock = threading.RLock()
        self._seat = Seat(self._lock, news.interrupt)
        self._batch_readers: dict[Waiter, None] = {}
        self._patient: dict[Waiter, None] = {}
        """Who waits for an engine that serves."""
        self._gone: deque[Attempt] = deque()
        self._finalizer = weakref.finalize(self, _finalize, engines, news)

    def add_request(self, request: EngineCoreRequest) -> EngineRank:
        """See `EngineCoreClient.add_request`."""
        return self._submit(request, None).engine.rank

    def get_outputs(self, timeout: float | None = None) -> OutputBatch:
        """Wait for the next batch, at most `timeout` seconds (None: for ever); an empty one if time is up."""
        self._enter()
        check_timeout(timeout)
        batch: OutputBatch | None = None
        waiter = Waiter()

        def ready() -> bool:
            nonlocal batch
            batch = self._session.take_batch()
            if batch is None:
                self._session.check()
                self._batch_readers[waiter] = None
            return batch is not None

        try:
            self._seat.wait(waiter, ready, self._receive, timeout)
        finally:
            with self._lock:
                self._batch_readers.pop(waiter, None)
                if self._batch_readers and self._session.has_batches:
                    self._seat.ring(next(iter(self._batch_readers)))
        return NO_OUTPUTS if batch is None else batch

    def generate(self, request: EngineCoreRequest) -> SyncStream:
        """Send a request; returns the iterator over its outputs. Raises as `add_request`."""
        feed = Feed(self._seat.ring)
        stream = SyncStream(self, feed)
        return stream.begin(self._submit(request, feed))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests; ids that are not in flight are ignored. A stream of one of them ends with ABORT."""
        self._enter()
        with self._lock:
            for message in self._session.abort(request_ids):
                self._link.send(message)
        self._drop_gone()
        if self._seat.held_here:
            self._news.interrupt()  # as in `close`

    def call(self, op: Op[Reply] | str, *args: Any, timeout: float | None = None, engine: int | None = None) -> Reply:
        """Run an operation on one engine, or on all (None); returns the answer of the lowest rank.

        Raises UnknownOperationError, CallFailedError, CallTimeoutError, InvalidRequestError if an argument
        cannot be sent.
        """
        answers = self._call(op, args, timeout, engine)
        return cast(Reply, answers[min(answers)])

    def call_all(self, op: Op[Reply] | str, *args: Any, timeout: float | None = None) -> dict[EngineRank, Reply]:
        """As `call` on all engines; returns every answer."""
        return self._call(op, args, timeout, None)

    def engines(self) -> list[EngineStatus]:
        """How each engine is, by rank."""
        self._seat.check_may_enter()
        with self._lock:
            self._link.look()
            self._catch_up()
            return engine_statuses(self._session, self._link)

    def observe_stats(self, listener: StatsListener | None) -> None:
        """As for asyncio, in whatever thread receives it."""
        self._session.on_stats = listener

    def check_health(self) -> None:
        """Raises EngineDeadError or ClientClosedError if no request can be served. Asks the engine nothing."""
        self._enter()
        with self._lock:
            self._link.look()
            self._catch_up()
            self._session.check_serving()

    def wait_serving(self, timeout: float | None = None, *, engine: int | None = None) -> None:
        """Return when an engine serves, or that of one rank.

        Raises EngineDeadError: with `restarting` if `timeout` seconds are over, without it if there will be none.
        """
        self._seat.check_may_wait()
        self._enter()
        check_timeout(timeout)
        waiter = Waiter()
        reasons: list[EngineDeadError] = []

        def ready() -> bool:
            self._session.doom(self._link.dying())
            try:
                self._session.check_serving(engine)
            except EngineDeadError as error:
                if not error.restarting:
                    raise
                reasons[:] = [error]
                self._patient[waiter] = None
                return False
            return True

        try:
            if not self._seat.wait(waiter, ready, self._receive, timeout):
                raise reasons[0]
        finally:
            with self._lock:
                self._patient.pop(waiter, None)

    def scale(self, engines: int, *, drain_timeout: float | None = DRAIN_TIMEOUT) -> None:
        """See `EngineCoreClient.scale`."""
        self._seat.check_may_wait()
        self._enter()
        waiter, clock = Waiter(), time.monotonic
        scaling = Scaling(self._session, self._link, engines, drain_timeout, clock())
        over = False

        def done() -> bool:
            nonlocal over
            over = scaling.advance(clock())
            self._patient[waiter] = None
            return over

        with self._lock:
            self._catch_up()
            scaling.begin(partial(self._seat.ring, waiter))
        try:
            while not over:
                self._seat.wait(waiter, done, self._receive, scaling.left(clock()))
        finally:
            with self._lock:
                self._patient.pop(waiter, None)
                scaling.end()
        scaling.check()

    def close(self, timeout: float | None = None) -> None:
        """Stop the engines that were started here and release everything; any thread may call it, also again."""
        check_timeout(timeout)
        if self._seat.locked_here:  # we are a signal handler on top of a bookkeeping, which must be done first
            threading.Thread(target=self.close, args=(timeout,), name="muro-close").start()
            return
        if self._lock.acquire(timeout=_CLOSE_PATIENCE):
            try:
                self._end()
            finally:
                self._lock.release()
        self._link.stop(timeout)
        if self._seat.held_here:
            self._news.interrupt()  # the wait under this signal handler goes on, and nothing else would end it
            return  # the finalizer closes the sockets once the interrupted call has unwound
        if not self._seat.close(_CLOSE_PATIENCE):
            return
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reader_gone(self, attempt: Attempt) -> None:
        """Take note that nobody reads this attempt any more (any thread, any moment)."""
        self._gone.append(attempt)
        self._drop_gone()

    def wait_for(self, feed: Feed) -> None:
        """Wait until there is something in a stream's feed."""
        self._link.check_process()
        if feed.waiter is not None:
            raise UsageError("this stream is being read already: by another thread, or under this signal handler")
        waiter = feed.waiter = Waiter()
        try:
            self._seat.wait(waiter, feed.ready, self._receive, None)
        finally:
            feed.waiter = None
            if self._gone:
                self._drop_gone()

    def _enter(self) -> None:
        self._link.check_process()
        self._seat.check_may_enter()
        if self._gone:
            self._drop_gone()  # their ids may be wanted again

    def _submit(self, request: EngineCoreRequest, feed: Feed | None) -> Attempt:
        self._enter()
        with self._lock:
            attempt = None
            try:
                self._take_gone()  # somebody may have held the lock when we came
                self._catch_up()
                attempt, message = self._session.add(request, feed, time.time())
                while not self._link.send(message):
                    self._send_all(self._session.drop([attempt]))
                    self._refused(message, elsewhere=True)
                    attempt, message = self._session.add(request, feed, time.time())
            except BaseException:
                if attempt is not None:
                    self._send_all(self._session.drop([attempt]))
                raise
        if self._gone:
            self._drop_gone()
        return attempt

    def _call(
        self, op: Op[Any] | str, args: tuple[Any, ...], timeout: float | None, engine: int | None
    ) -> dict[EngineRank, Any]:
        self._seat.check_may_wait()
        self._enter()
        check_timeout(timeout)
        waiter = Waiter()
        call: PendingCall | None = None
        try:
            with self._lock:
                self._catch_up()
                call, messages = self._session.call(op, args, engine, partial(self._seat.ring, waiter))
                for message in messages:
                    if not self._link.send(message):
                        self._refused(message, elsewhere=False)
            pending = call
            if not self._seat.wait(waiter, lambda: pending.over, self._receive, timeout):
                raise CallTimeoutError(f"no answer to {call.method!r} within {timeout} s", method=call.method)
            return call.result()
        finally:
            if call is not None and not call.over:
                with self._lock:
                    self._session.calls.end(call, None)
            if self._gone:
                self._drop_gone()

    def _receive(self, timeout: float | None) -> None:
        """Wait for news and take them in (holder of the seat)."""
        if not self._news.wait(timeout):
            return
        try:
            now = self._link.now()
            news = self._news.take()
            with self._lock:
                self._take_in(news, now)
        except BaseException:
            with self._lock:
                self._send_all(self._session.abort_all())
                self._ring_batch_readers()
            raise
        if self._gone:
            self._drop_gone()

    def _catch_up(self) -> None:
        """Take in what has happened to engines while nobody received; whoever receives does it by itself.

        Under the lock nobody can take the seat, so if it is free its work is ours. Who is known to have died gets no
        more requests, whoever receives.
        """
        if (due := self._link.due()) is None:
            return
        if due == 0 and self._seat.free:
            now = self._link.now()
            self._take_in(self._news.take(), now)
        self._session.doom(self._link.dying())

    def _take_in(self, news: Iterable[EngineCoreOutputs | Unreadable | Publication], now: float) -> None:
        for item in news:
            if isinstance(item, EngineCoreOutputs):
                self._session.receive(item)
            elif isinstance(item, Unreadable):
                self._send_all(self._session.refuse(item))
            else:
                hear_coordinator(item, self._session, self._link, time.time())
        for event in self._link.events(now):
            self._apply(event)
        if self._batch_readers and self._session.has_batches:
            self._seat.ring(next(iter(self._batch_readers)))

    def _apply(self, event: Event) -> None:
        hear(event, self._session, self._link)
        self._ring_batch_readers()
        for waiter in self._patient:
            self._seat.ring(waiter)

    def _refused(self, message: Message, *, elsewhere: bool) -> None:
        """See `Session.refused`."""
        self._link.refused(message)
        self._session.refused(message, self._link.dying(), elsewhere=elsewhere)

    def _end(self) -> None:
        self._send_all(self._session.close())
        self._ring_batch_readers()
        for waiter in self._patient:
            self._seat.ring(waiter)

    def _ring_batch_readers(self) -> None:
        for waiter in self._batch_readers:
            self._seat.ring(waiter)

    def _send_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._link.send(message)

    def _drop_gone(self) -> None:
        """Empty the queue of lost readers, unless somebody holds the lock: then that one does it afterwards."""
        while self._gone and not self._seat.locked_here and self._lock.acquire(blocking=False):
            try:
                self._take_gone()
            finally:
                self._lock.release()

    def _take_gone(self) -> None:
        gone = []
        while self._gone:
            gone.append(self._gone.popleft())
        self._send_all(self._session.drop(gone))


class SyncMPClient(ThreadsClient):
    """The client for threads of engines in processes of their own. Only its name differs."""


def _finalize(engines: Engines, news: NewsSource) -> None:
    """Give everything back: after `close`, or for a client that nobody closed."""
    engines.abandon()
    engines.release()
    news.close()
