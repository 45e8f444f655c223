"""One connection of an engine, mirrored: `near` is bound and the engine dials it, `far` dials the front-end.

`far` is made when the engine has said something, so whatever the front-end answers finds the engine there. If one side
goes, what it said before is passed on and the other side's connection is closed. Each side takes a limited number of
messages; while it takes none, nothing is read from the other one, so a slow reader is felt where it is felt without us.

One thread owns the lines of a tap, and the pump that calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from muro.probe.departure import Departure
from muro.probe.journal import Journal
from muro.probe.recording import Direction, Role
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, close, receive_from, receive_nowait, send_nowait

QUEUED: Final = 1000
"""Messages that wait in each direction before no more are read."""
LAST_WORDS_MS: Final = 4000
"""How long what was said goes on being delivered after the one who said it has gone."""

Dialler = Callable[[bytes, Callable[[Socket], object]], Socket]
"""Dials the front-end as the given identity; what is given next prepares the socket."""


class Waiting(Protocol):
    """Something that must be ticked while it waits."""

    @property
    def waiting(self) -> bool: ...

    def tick(self) -> None: ...


class Lane:
    """One direction. At most one message is held, while the other side takes none."""

    def __init__(
        self,
        take: Callable[[], list[Frame] | None],
        give: Callable[[list[Frame]], bool],
        note: Callable[[list[Frame]], None],
    ) -> None:
        self._take = take
        self._give = give
        self._note = note
        self.held: list[Frame] | None = None

    def move(self) -> bool:
        """Pass one message on; False if there was none, or it is held."""
        frames = self._take() if self.held is None else self.held
        if frames is None:
            return False
        if not self._give(frames):
            self.held = frames
            return False
        self.held = None
        self._note(frames)
        return True


class Line:
    """See the module.

    Args:
        role, client: what it carries.
        link: number of the engine's joining.
        peer: the engine's identity.
        near: bound, ROUTER if `addressed`, and `watch` its monitor.
        dial: makes `far`.
        two_way: whether the front-end answers on it.
        unsettled: where it puts itself when it must be ticked.
        changed: called when a connection has come or gone.
    """

    def __init__(
        self,
        role: Role,
        client: int | None,
        link: int,
        peer: bytes,
        *,
        near: Socket,
        watch: Monitor,
        dial: Dialler,
        addressed: bool,
        two_way: bool,
        pump: Pump,
        journal: Journal,
        unsettled: set[Waiting],
        changed: Callable[[], None],
    ) -> None:
        self.role = role
        self.client = client
        self.near = near
        self.far_lost = False
        self.ending: Lane | None = None
        """The direction that is still being delivered, once one side has gone."""
        self.closed = False
        self.departure = Departure()
        """Of our connection to the front-end."""
        self._watch = watch
        self._far: Socket | None = None
        self._far_watch: Monitor | None = None
        self._dial = dial
        self._addressed = addressed
        self._identity = b"" if addressed else peer
        self._two_way = two_way
        self._pump = pump
        self._unsettled = unsettled
        self._changed = changed
        self._open: set[int] = set()
        self._descriptor = 0
        note = partial(journal.message, role)
        self._event = partial(journal.event, role, peer, link, client)
        self._up = Lane(self._hear, self._tell, partial(note, Direction.TO_FRONTEND, peer, link, client))
        self._down = Lane(self._hear_far, self._tell_near, partial(note, Direction.TO_ENGINE, peer, link, client))
        self._handlers = {self._up: partial(self._move, self._up), self._down: partial(self._move, self._down)}
        pump.add(near, self._handlers[self._up])
        pump.add(watch.socket, self._look_near)

    @property
    def near_lost(self) -> bool:
        """Whether the engine's connection has ended; if nobody can tell whose is whose, whether there is none."""
        if self._addressed:
            return self._descriptor != 0 and self._descriptor not in self._open
        return not self._open

    @property
    def waiting(self) -> bool:
        """Whether `tick` must be called soon, because somebody does not take what is there."""
        return not self.closed and (self.ending is not None or self._up.held is not None or self._down.held is not None)

    def tick(self) -> None:
        """Try again."""
        if self.closed:
            return
        if self.ending is not None:
            while self.ending.move():
                pass
            listener_lost = self.far_lost if self.ending is self._up else self.near_lost
            if self.ending.held is None or listener_lost:
                self.close()
            return
        for lane, socket in ((self._up, self.near), (self._down, self._far)):
            if lane.held is not None and lane.move() and socket is not None:
                self._pump.add(socket, self._handlers[lane])

    def catch_up(self) -> None:
        """Pass on what the engine has said."""
        if not self.closed and self.ending is None:
            while self._up.move():
                pass
            self._move(self._up)  # if one is held, it is seen to

    def end(self, *, near: bool) -> None:
        """One side has gone: deliver what it said, then let the other one see it."""
        if self.closed or self.ending is not None:
            return
        self.ending = self._up if near else self._down
        self._pump.remove(self.near)
        if self._far is not None:
            self._pump.remove(self._far)
        self.tick()
        self._unsettled.add(self)

    def close(self) -> None:
        """Close both sides; what was passed on still leaves. May be called twice."""
        if self.closed:
            return
        self.closed = True
        self._read_far_news()
        self.departure.leave()
        for watch, socket in ((self._watch, self.near), (self._far_watch, self._far)):
            if watch is not None:
                self._pump.remove(watch.socket)
                watch.close()
            if socket is not None:
                self._pump.remove(socket)
                close(socket)

    def _move(self, lane: Lane) -> None:
        if not lane.move() and lane.held is not None:
            self._unsettled.add(self)
            source = self.near if lane is self._up else self._far
            if source is not None:
                self._pump.remove(source)

    def _hear(self) -> list[Frame] | None:
        if not self._addressed:
            return receive_nowait(self.near)
        while True:
            if self._descriptor:
                frames = receive_nowait(self.near)
            else:
                frames, descriptor = receive_from(self.near) or (None, 0)
                if frames is not None:
                    self._identity, self._descriptor = bytes(frames[0]), descriptor
                    self._look_near()
            if frames is None:
                return None
            identity = bytes(frames.pop(0))
            if identity == self._identity:
                return frames
            self._event(f"somebody else ({identity[:8].hex()}) spoke on the engine's socket and was not passed on")

    def _tell(self, frames: list[Frame]) -> bool:
        if self._far is None:
            self._far = self._dial(self._identity, self._watch_far)
            if self._far_watch is not None:
                self._pump.add(self._far_watch.socket, self._look_far)
            if self._two_way:
                self._pump.add(self._far, self._handlers[self._down])
        return send_nowait(self._far, frames)

    def _hear_far(self) -> list[Frame] | None:
        return receive_nowait(self._far) if self._far is not None and self._two_way else None

    def _tell_near(self, frames: list[Frame]) -> bool:
        return send_nowait(self.near, [self._identity, *frames] if self._addressed else frames)

    def _watch_far(self, socket: Socket) -> None:
        if self._two_way:
            self._far_watch = Monitor.of(socket)

    def _look_near(self) -> None:
        while (news := self._watch.read()) is not None:
            change, descriptor = news
            if change is Change.ACCEPTED:
                self._open.add(descriptor)
            elif change is Change.DOWN:
                self._open.discard(descriptor)
        self._changed()

    def _look_far(self) -> None:
        if self._read_far_news():
            self.far_lost = True
            self._changed()

    def _read_far_news(self) -> bool:
        """Whether the front-end has hung up."""
        lost = False
        while self._far_watch is not None and (news := self._far_watch.read()) is not None:
            change, descriptor = news
            if change is Change.DIALLED:
                self.departure.dialled(descriptor)
            elif change is Change.DOWN:
                self.departure.ended()
                lost = True
        return lost
