"""What a client has of its engines: sockets, and the supervisor of the processes. Knows no request and no caller.

A client owns one link and a finalizer of it; the link knows no client, so a client that is dropped can be
collected and the finalizer then gives everything back, as it does at interpreter exit. Invariants:

- Sending and `events` happen under the client's state lock (or in its loop); receiving by one thread at a time.
- Events of the supervisor are taken note of in whatever thread finds them out, and wait here for the client. A death
  waits for a moment, so that what the engine sent before is read before.
- `close` may be called from any thread, by several at once, and again; it is bounded. Sockets are closed last,
  by whoever is sure that nobody polls them (`close` is told so).
- A link that was inherited by a forked process does nothing there: the engines belong to the parent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from muro.clients.coordination import Coordination
from muro.clients.parts import Entry, Start, Successors, Watcher
from muro.clients.session import Message, Session, Unreadable
from muro.clients.silence import SilentEngines
from muro.clients.traffic import Traffic
from muro.errors import EngineDeadError, RemoteProtocolError, UsageError
from muro.ids import EngineRank
from muro.launch.data_parallel import DataParallel
from muro.launch.events import (
    EngineAdded,
    EngineDied,
    EngineProgress,
    EngineReplaced,
    EngineStalled,
    EngineStarted,
    Event,
)
from muro.launch.rank import RankStatus
from muro.launch.remotes import Remotes
from muro.transport import sockets
from muro.transport.sockets import Frame, Socket, send_nowait
from muro.wire.codec import Marker, OutputDecoder
from muro.wire.coordination import Publication
from muro.wire.frames import RequestType, identity_of, rank_of
from muro.wire.output import EngineCoreOutputs
from muro.wire.releases import Layout

log = logging.getLogger(__name__)

ABANDONED_TIMEOUT = 1.5
"""Seconds that engines get to end by themselves if nobody closed their client."""
COORDINATOR_TIMEOUT = 1.0
"""Seconds that the coordinator gets to end by itself, at most; it holds nothing that could be lost."""
LAST_OUTPUTS_GRACE = 0.005
"""Seconds between the end of a process and its burial: what it sent before is still being read by libzmq."""
_SWEEP_EVERY = 1.0
"""Seconds between two looks at the input sockets, where engines have nothing more to say, but strangers may."""
_SWEPT = 1024
"""Messages that are thrown away there at once."""
_END_PATIENCE = 0.05
"""Seconds between the end of an engine's connections and the end of its process, at most."""


class Link:
    """The doors and the engines that came through them.

    Args:
        doors: bound sockets.
        supervisor: of the engines that were started here; not yet open.
        replacer: where the doors of successors are.
        traffic: where it is counted what is sent.
        layout: in which layout the engines write their outputs.
        close_timeout: seconds that the children get between SIGTERM and SIGKILL.
        remotes: the engines that were started elsewhere; not yet open.
        shared: what the engines share; ended with them.
        coordination: with the coordinator, if there is one; open.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        doors: Entry,
        supervisor: Watcher,
        replacer: Successors,
        traffic: Traffic,
        layout: Layout,
        close_timeout: float,
        remotes: Remotes | None = None,
        shared: DataParallel | None = None,
        coordination: Coordination | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doors = doors
        self._supervisor = supervisor
        self._replacer = replacer
        self._traffic = traffic
        self._inputs: dict[Frame, Socket] = {}
        """Of successors, by identity; all others came through the first door."""
        self._decoder = OutputDecoder(layout)
        self._close_timeout = close_timeout
        self._remotes = remotes
        self._shared = shared
        self.coordination = coordination
        """With the coordinator: its ear is to be polled like `outputs`."""
        self._clock = clock
        self._events: deque[tuple[float, Event]] = deque()
        self._wake: Callable[[], None] = lambda: None
        self._owner = os.getpid()
        self._closing = threading.RLock()
        self._stopped = False
        self._swept = clock()
        self.silent: SilentEngines | None = None
        """Engines that are judged by what is heard of them."""
        self.fixed = ""
        """Why the number of engines cannot change; empty: it can."""
        self._reported: dict[EngineRank, float | None] = {}
        """When the last statistics of each engine came."""
        self.dropped_messages = 0

    def listen_for(self, session: Session, stall_limit: float | None) -> None:
        """Note when engines are heard, and judge those that were started elsewhere by that."""
        self._reported = dict.fromkeys(session.engines)
        elsewhere = [rank for rank in session.engines if self._supervisor.status(rank) is None]
        if elsewhere and stall_limit:
            self.silent = SilentEngines(session, elsewhere, stall_limit, self._lost)

    def open(self, wake: Callable[[], None]) -> None:
        """Begin to supervise; `wake` is called in any thread when there are events. Raises StartupError."""
        self._wake = wake
        self._supervisor.subscribe(self._hear)
        self._supervisor.open()
        if self._remotes is not None:
            self._remotes.open()

    @property
    def supervisor(self) -> Watcher:
        """For others who want to hear of the engines."""
        return self._supervisor

    @property
    def outputs(self) -> Socket:
        """The socket to poll for what engines send."""
        return self._doors.outputs

    def check_process(self) -> None:
        """Raises UsageError in a process that has inherited this client by fork."""
        if os.getpid() != self._owner:
            raise UsageError(f"this client belongs to process {self._owner}; make one of its own in each process")

    def send(self, message: Message) -> bool:
        """Send to an engine; False if it is not connected (any more), or was told to stop."""
        if self._stopped or not send_nowait(self._inputs.get(message[0], self._doors.inputs), message):
            return False
        self._traffic.message_sent(message[0])
        if self.coordination is not None and message[1] == RequestType.ADD:
            self.coordination.request_sent(rank_of(message[0]))
        return True

    def decode(self, frames: list[Frame]) -> EngineCoreOutputs | Unreadable | Marker | None:
        """A message, or the announcement of a death.

        Never raises for what a peer sent. What is not the protocol is counted, and ends the requests that it
        speaks of with an error; if it speaks of none it is dropped (None).
        """
        try:
            message = self._decoder.decode(frames)
            if isinstance(message, EngineCoreOutputs):
                if message.scheduler_stats is not None and message.engine_index in self._reported:
                    self._reported[EngineRank(message.engine_index)] = self._clock()
                if self.silent is not None:
                    self.silent.heard(message.engine_index)
            return message
        except RemoteProtocolError as error:
            self.dropped_messages += 1
            if self.dropped_messages & (self.dropped_messages - 1) == 0:  # 1, 2, 4, 8 ...: a flood stays readable
                log.warning("dropped %d messages that are not the protocol; the last: %s", self.dropped_messages, error)
            ends = self._decoder.salvage(frames, error)
            return None if ends is None else Unreadable(ends)

    def notice(self) -> None:
        """An engine has announced its death: find out which one."""
        if self._remotes is not None and self._remotes.announced():
            return  # if it was started here, it leaves a record, which is looked for in any case
        if not self._stopped:
            self._supervisor.notice()

    def look(self) -> None:
        """Find out now whether engines have died."""
        self._supervisor.look()
        self._sweep(self._clock())

    def refused(self, message: Message) -> None:
        """A message was not taken: if its engine is about to end, or its connection has just ended, whoever watches it
        gets a moment to find that out; then see `dying`."""
        rank = rank_of(message[0])
        self._supervisor.wait_end(rank, _END_PATIENCE)
        if self._remotes is not None:
            self._remotes.wait_lost(rank, _END_PATIENCE)

    def due(self) -> float | None:
        """Seconds until the next event is due, 0 if it is; None if there is none."""
        if not self._events:
            return None
        try:
            at = self._events[0][0]
        except IndexError:  # taken by another thread just now
            return None
        return max(0.0, at - self._clock())

    def now(self) -> float:
        """The time, for `events`."""
        return self._clock()

    def events(self, now: float) -> Iterator[Event]:
        """What was due at `now`; all that had been sent until then must have been read.

        An event is gone when the next one is asked for: if it could not be taken in, it comes again.
        """
        self._sweep(now)
        while self._events and self._events[0][0] <= now:
            yield self._events[0][1]
            self._events.popleft()

    def dying(self) -> dict[EngineRank, EngineDeadError]:
        """Engines that have died and whose events were not taken yet."""
        died = [event for _, event in list(self._events) if isinstance(event, EngineDied)]
        return {event.rank: event.error for event in died}

    def started_here(self) -> list[EngineRank]:
        """See `scaling.Way`."""
        if self.fixed:
            raise UsageError(f"the number of engines cannot be changed: {self.fixed}")
        return [rank for rank in self._reported if self._supervisor.status(rank) is not None]

    def grow(self, rank: EngineRank) -> Start:
        """Start an engine of a new rank. Raises StartupError."""
        return self._supervisor.grow(rank)

    def let_go(self, rank: EngineRank) -> None:
        """End an engine that was started here for good."""
        self._supervisor.let_go(rank, self._close_timeout)

    def adopt(self, event: EngineReplaced | EngineAdded) -> None:
        """From now on send to the successor, or to the new one."""
        self._reported.setdefault(event.rank, None)
        identity = identity_of(event.rank)
        socket = self._replacer.adopt(event.rank, event.generation)
        if socket is None and self._remotes is not None:
            socket = self._remotes.adopt(event.rank, event.generation)
        if socket is not None:
            self._traffic.succeeded(event.rank, event.generation)
            old, self._inputs[identity] = self._inputs.get(identity), socket
            if old is not None and old not in self._inputs.values():  # a lockstep group has one for all
                sockets.close(old, 0)

    def heard(self, news: Publication) -> None:
        """The coordinator has published."""
        if self.coordination is not None:
            self.coordination.heard(news)

    def forget(self, rank: EngineRank) -> None:
        """An engine is gone for good."""
        self._reported.pop(rank, None)
        if (socket := self._inputs.pop(identity_of(rank), None)) is not None:
            sockets.close(socket, 0)

    def supervised(self, rank: EngineRank) -> RankStatus | None:
        """How the process of an engine is; None for one that was started elsewhere."""
        return self._supervisor.status(rank)

    def last_report_age(self, rank: EngineRank) -> float | None:
        """Seconds since the last statistics of an engine came; None if none have come."""
        reported = self._reported.get(rank)
        return None if reported is None else self._clock() - reported

    def stop(self, timeout: float | None = None) -> None:
        """End the children; a second call waits for the first."""
        if os.getpid() != self._owner:
            return
        with self._closing:
            if not self._stopped:
                self._stopped = True
                if self._remotes is not None:
                    self._remotes.stop()
                patience = self._close_timeout if timeout is None else timeout
                self._supervisor.stop(patience)
                if self._shared is not None:
                    self._shared.close(min(patience, COORDINATOR_TIMEOUT))

    def release(self) -> None:
        """Close the sockets. Nobody may poll or use them any more."""
        if os.getpid() == self._owner:
            with self._closing:
                for socket in self._inputs.values():
                    sockets.close(socket, 0)
                self._replacer.close()
                if self.coordination is not None:
                    self.coordination.close()
                if self._remotes is not None:
                    self._remotes.release()
                self._doors.close()

    def abandon(self) -> None:
        """Stop the children of a client that nobody closed: it was collected, or the interpreter ends."""
        self.stop(min(self._close_timeout, ABANDONED_TIMEOUT))

    def _sweep(self, now: float) -> None:
        if now - self._swept >= _SWEEP_EVERY and not self._stopped:
            self._swept = now
            for socket in {self._doors.inputs, *self._inputs.values()}:
                sockets.sweep(socket, _SWEPT)

    def _lost(self, rank: EngineRank, error: EngineDeadError) -> None:
        """An engine that was started elsewhere is taken for dead."""
        if self._remotes is not None:
            self._remotes.take_for_dead(rank, error)
        else:
            self._supervisor.lost(rank, error)

    def _hear(self, event: Event) -> None:
        if not isinstance(event, EngineStalled | EngineStarted | EngineProgress):
            wait = LAST_OUTPUTS_GRACE if isinstance(event, EngineDied) else 0.0
            self._events.append((self._clock() + wait, event))
            self._wake()
