"""What a client has of its engines: sockets and child processes. Knows no request and no caller.

A client owns one link and a finalizer of it; the link knows no client, so a client that is dropped can be
collected and the finalizer then gives everything back, as it does at interpreter exit. Invariants:

- Sending and `deaths` happen under the client's state lock (or in its loop); receiving by one thread at a time.
- `close` may be called from any thread, by several at once, and again; it is bounded. Sockets are closed last,
  by whoever is sure that nobody polls them (`close` is told so).
- A link that was inherited by a forked process does nothing there: the engines belong to the parent.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muro.clients.doors import Doors
from muro.clients.session import Message, Unreadable
from muro.errors import EngineDeadError, RemoteProtocolError, UsageError
from muro.ids import EngineRank, Generation
from muro.launch.shutdown import stop
from muro.launch.supervisor import EngineDied, Supervisor
from muro.transport.sockets import Frame, Socket, send_nowait
from muro.wire.codec import Marker, OutputDecoder
from muro.wire.output import EngineCoreOutputs
from muro.wire.releases import Layout

if TYPE_CHECKING:
    from muro.launch.spawn import Child
    from muro.wire.progress import Progress

log = logging.getLogger(__name__)

ABANDONED_TIMEOUT = 1.5
"""Seconds that engines get to end by themselves if nobody closed their client."""
LAST_OUTPUTS_GRACE = 0.05
"""Seconds between the end of a process and its burial: what it sent before may still be on its way to us."""
NOTICE_PATIENCE = 1.0
"""Seconds that an engine that announced its death gets to leave a cause before it is reported without one."""


class Link:
    """The doors and the engines that came through them.

    Args:
        doors: bound sockets.
        children: the engines that were started here, by rank.
        layout: in which layout the engines write their outputs.
        close_timeout: seconds that the children get between SIGTERM and SIGKILL.
    """

    def __init__(
        self, doors: Doors, children: Mapping[EngineRank, Child], layout: Layout, close_timeout: float
    ) -> None:
        self._doors = doors
        self._children = dict(children)
        self._supervisor = Supervisor(children)
        self._decoder = OutputDecoder(layout)
        self._close_timeout = close_timeout
        self._owner = os.getpid()
        self._closing = threading.RLock()
        self._stopped = False
        self.dropped_messages = 0

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
        return not self._stopped and send_nowait(self._doors.inputs, message)

    def decode(self, frames: list[Frame]) -> EngineCoreOutputs | Unreadable | Marker | None:
        """A message, or the announcement of a death.

        Never raises for what a peer sent. What is not the protocol is counted, and ends the requests that it
        speaks of with an error; if it speaks of none it is dropped (None).
        """
        try:
            return self._decoder.decode(frames)
        except RemoteProtocolError as error:
            self.dropped_messages += 1
            if self.dropped_messages & (self.dropped_messages - 1) == 0:  # 1, 2, 4, 8 ...: a flood stays readable
                log.warning("dropped %d messages that are not the protocol; the last: %s", self.dropped_messages, error)
            ends = self._decoder.salvage(frames, error)
            return None if ends is None else Unreadable(ends)

    def announced(self) -> EngineDied | None:
        """Who has announced its death, with the cause; None as long as that is not known.

        The announcement names nobody: an engine that was started here has left a failure record before it.
        """
        for rank, child in self._children.items():
            if child.failure() is not None:
                return EngineDied(rank, self._supervisor.generation(rank), self._supervisor.dead_error(rank))
        return None if self._children else self.nameless_death()

    def nameless_death(self) -> EngineDied:
        """An engine has announced its death, and nobody can say more."""
        error = EngineDeadError("an engine has announced that it failed and ends; the cause stands in its own log")
        return EngineDied(EngineRank(0), Generation(0), error)

    @property
    def sentinels(self) -> list[int]:
        """Descriptors that turn readable when a child has ended."""
        return list(self._supervisor.sentinels().values())

    def deaths(self) -> list[EngineDied]:
        """Children that have ended since the last call; does not wait."""
        return [] if self._stopped else self._supervisor.collect()

    def progress(self, rank: EngineRank) -> tuple[int | None, Progress | None]:
        """Process id and progress page of an engine; nothing for one that was started elsewhere."""
        child = self._children.get(rank)
        return (None, None) if child is None else (child.pid, child.progress())

    def stop(self, timeout: float | None = None) -> None:
        """End the children; a second call waits for the first."""
        if os.getpid() != self._owner:
            return
        with self._closing:
            if not self._stopped:
                self._stopped = True
                stop(self._children.values(), self._close_timeout if timeout is None else timeout)

    def release(self) -> None:
        """Close the sockets. Nobody may poll or use them any more."""
        if os.getpid() == self._owner:
            with self._closing:
                self._doors.close()

    def abandon(self) -> None:
        """Stop the children of a client that nobody closed: it was collected, or the interpreter ends."""
        self.stop(min(self._close_timeout, ABANDONED_TIMEOUT))
