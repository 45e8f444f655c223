"""A tap: stands between a front-end and its engines, passes everything on and takes note of it.

Engines dial the tap as they would dial the front-end, and the tap dials the front-end as they would. One thread, one
poll loop: a message is received, sent and then recorded, in this order, so that recording delays nobody's message but
the next one's.

What the tap cannot hide: addresses, and that the two connections of each engine end one after the other.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from muro.errors import ConfigError
from muro.probe.journal import Journal
from muro.probe.line import Waiting
from muro.probe.link import Link, Setting, status
from muro.probe.recording import Role
from muro.transport.endpoint import EndpointDirectory, check_clear, parse_address, tcp_endpoint
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, bind_router, bound_address, close, receive_from, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.handshake import Step

MAX_LINKS: Final = 256
"""Engines that are joining or connected at a time; further ones are not answered."""
AGAIN_MS: Final = 1
"""How often somebody who takes nothing at the moment is tried again."""
_BIND_PATIENCE: Final = 2.0


def check_addresses(listen: str, to: str, insecure: bool) -> None:
    """Raises ConfigError if a tap cannot stand between these."""
    for address in (listen, to):
        check_clear(address, insecure)
    there = parse_address(to)
    if there.port == 0 and not there.is_ipc:
        raise ConfigError(f"{to} names no port; --to is where the front-end waits for its engines")
    if there == (here := parse_address(listen)):
        raise ConfigError(f"--listen and --to are both {to}: the tap would dial itself; --listen is where engines dial")
    if not here.is_ipc:
        tcp_endpoint(here.host)  # engines are told to dial this host, so it must be one


class Tap:
    """See the module; `with Tap(...) as tap: tap.run(stop)`.

    Args:
        listen: where engines dial; port 0 for any. `check_addresses` has let it pass, and `to`.
        to: the front-end's handshake address.
        journal: takes note.
        insecure: whether either may be on another machine; nothing here is encrypted.
    """

    def __init__(self, listen: str, to: str, journal: Journal, *, insecure: bool = False) -> None:
        self._listen = listen
        self._to = to
        self._insecure = insecure
        self._journal = journal
        self._pump = Pump()
        self._directory = EndpointDirectory()
        self._near: Socket | None = None
        self._watch: Monitor | None = None
        self._by_descriptor: dict[int, Link] = {}
        self._open: set[int] = set()
        """Descriptors of connections, as far as the news have been read; a number is soon given to the next one."""
        self._reused: set[int] = set()
        """Descriptors of a connection that has ended and of one that was accepted after it."""
        self._leaving: set[Link] = set()
        self._links: list[Link] = []
        self._unsettled: set[Waiting] = set()
        self._setting: Setting | None = None
        self._stopped = False
        self.joined = 0
        """Engines that have said something, by now."""
        self.refused = 0
        """Those that came when there were too many."""

    @property
    def address(self) -> str:
        """Where engines dial; the port is a real one."""
        return self._listen

    def open(self) -> Tap:
        """Listen. Raises ConfigError."""
        endpoint = parse_address(self._listen)
        if endpoint.is_ipc:
            self._directory.open()
        self._bind(0.0)
        self._setting = Setting(
            self._to, endpoint, self._directory, self._insecure, self._pump, self._journal, self._unsettled
        )
        return self

    def run(self, stop: Wakeup) -> None:
        """Pass messages on until `stop` is set."""
        self._pump.add(stop.fileno(), self._stop)
        unsettled = self._unsettled
        while not self._stopped:
            self._pump.poll(AGAIN_MS if unsettled else None)
            if unsettled:
                for one in list(unsettled):
                    one.tick()
                unsettled.difference_update([one for one in unsettled if not one.waiting])

    def close(self) -> None:
        """Hang up on everybody; what was passed on still leaves."""
        for link in self._links:
            link.close()
        self._unbind()
        self._directory.close()

    def __enter__(self) -> Tap:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _stop(self) -> None:
        self._stopped = True

    def _bind(self, patience: float) -> None:
        near = self._near = bind_router(
            self._listen, handover=True, linger_ms=1000, prepare=self._watch_near, patience=patience
        )
        self._listen = bound_address(near)
        self._pump.add(near, self._hear_engine)
        if self._watch is not None:
            self._pump.add(self._watch.socket, self._look)

    def _unbind(self) -> None:
        if self._watch is not None:
            self._pump.remove(self._watch.socket)
            self._watch.close()
            self._watch = None
        if self._near is not None:
            self._pump.remove(self._near)
            close(self._near)
            self._near = None
        for known in (self._by_descriptor, self._open, self._reused, self._leaving):
            known.clear()

    def _watch_near(self, socket: Socket) -> None:
        self._watch = Monitor.of(socket)

    def _hang_up(self) -> None:
        """The front-end has hung up on engines that wait for INIT: only so do they learn of it."""
        gone = list(self._by_descriptor.values())
        self._unbind()
        for link in gone:
            link.hung_up()
        self._bind(_BIND_PATIENCE)

    def _look(self) -> None:
        self._read_news()
        self._let_go()

    def _hear_engine(self) -> None:
        self._hear()
        self._let_go()

    def _read_news(self) -> None:
        while self._watch is not None and (news := self._watch.read()) is not None:
            change, descriptor = news
            if change is Change.ACCEPTED:
                self._open.add(descriptor)
                if descriptor in self._by_descriptor:
                    self._reused.add(descriptor)
            elif change is Change.DOWN:
                self._open.discard(descriptor)
                if (link := self._by_descriptor.get(descriptor)) is not None:
                    self._leaving.add(link)

    def _let_go(self) -> None:
        """Of those who have hung up, when all that they said has been heard."""
        if not self._leaving:
            return
        while self._hear():
            pass
        for descriptor, link in list(self._by_descriptor.items()):
            if link in self._leaving:
                del self._by_descriptor[descriptor]
                link.hung_up()
        self._leaving.clear()
        self._reused.clear()

    def _hear(self) -> bool:
        """A word of an engine's; whether there was one."""
        if self._near is None or (received := receive_from(self._near)) is None:
            return False
        frames, descriptor = received
        peer = bytes(frames.pop(0))
        self._read_news()  # after the word: who said it has been accepted by now
        link = self._by_descriptor.get(descriptor)
        if link is not None and descriptor in self._reused and status(frames) == Step.HELLO.value:
            self._reused.discard(descriptor)
            self._leaving.discard(link)
            link.hung_up()
            link = None
        if link is None:
            link = self._admit(peer, descriptor)
        if link is not None and frames:
            link.say(frames)
        return True

    def _admit(self, peer: bytes, descriptor: int) -> Link | None:
        """Somebody new is at the handshake socket."""
        self._links = [link for link in self._links if not link.done]
        if self._setting is None or len(self._links) >= MAX_LINKS:
            self.refused += 1
            return None
        before = next((link for link in reversed(self._links) if link.peer == peer and not link.has_hung_up), None)
        link = Link(self._setting, self.joined, peer, before, partial(self._answer, peer), self._hang_up)
        self._journal.event(Role.HANDSHAKE, peer, link.number, None, f"{link.name} dials")
        self.joined += 1
        link.open()
        self._links.append(link)
        self._by_descriptor[descriptor] = link
        if descriptor not in self._open:
            self._leaving.add(link)
        return link

    def _answer(self, peer: bytes, frames: list[Frame]) -> bool:
        return self._near is not None and send_nowait(self._near, [peer, *frames])
