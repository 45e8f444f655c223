"""One engine's joining through a tap: its words at the handshake, and the lines that INIT gave it.

Every engine gets addresses of its own, so it is always known who speaks, and one that joins again has nothing to do
with its predecessor, except that it dials when that one has hung up: a front-end does not hear a second engine of the
same identity. INIT is the only message that is changed: its addresses are the tap's.

One thread owns this, and the pump that calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from muro.errors import ConfigError, RemoteProtocolError
from muro.probe.departure import Departure
from muro.probe.journal import Journal
from muro.probe.line import LAST_WORDS_MS, QUEUED, Dialler, Line, Waiting
from muro.probe.recording import Direction, Role
from muro.transport.endpoint import Endpoint, EndpointDirectory, check_clear, ipc_endpoint, tcp_endpoint
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import (
    PLAIN,
    Dial,
    Frame,
    Socket,
    bind_pull,
    bind_router,
    bind_xpub,
    bound_address,
    close,
    connect_dealer,
    connect_push,
    connect_xsub,
    limit_sending,
    receive_nowait,
    send_nowait,
)
from muro.wire.handshake import HEARTBEAT, Init, Step, decode_init

MAX_CLIENTS: Final = 128
"""Front-end processes of one front-end; each costs ten sockets."""
MAX_EARLY: Final = 8
"""Words of an engine that are kept while its predecessor is still hanging up; an engine says one."""


class Setting(msgspec.Struct, frozen=True):
    """What all links of a tap share. `directory` is open if engines come by ipc; `listen` is where they come."""

    to: str
    listen: Endpoint
    directory: EndpointDirectory
    insecure: bool
    pump: Pump
    journal: Journal
    unsettled: set[Waiting]
    """Those that must be ticked."""


class Link:
    """See the module.

    Args:
        number: how many came before it.
        peer: the engine's identity.
        predecessor: the last one of the same identity, if it is still there.
        answer: sends the engine a message by the handshake socket; False if it has gone.
        front_end_gone: called when the front-end hangs up before the engine was ready.
    """

    def __init__(
        self,
        setting: Setting,
        number: int,
        peer: bytes,
        predecessor: Link | None,
        answer: Callable[[list[Frame]], bool],
        front_end_gone: Callable[[], None],
    ) -> None:
        self.number = number
        self.peer = peer
        self.lines: list[Line] = []
        self._setting = setting
        self._answer = answer
        self._front_end_gone = front_end_gone
        self._predecessor = predecessor
        self._early: list[list[Frame]] = []
        self._far: Socket | None = None
        self._watch: Monitor | None = None
        self._is_up = False
        self._departure = Departure()
        self._ready = False

    @property
    def name(self) -> str:
        """What to call the engine."""
        return (
            f"engine {int.from_bytes(self.peer, 'little')}" if len(self.peer) == 2 else f"peer {self.peer[:16].hex()}"
        )

    @property
    def done(self) -> bool:
        """Whether nothing is left of it."""
        return self.has_hung_up and all(line.closed for line in self.lines)

    @property
    def has_hung_up(self) -> bool:
        """Whether the front-end has noticed that this one, and its predecessors, have gone."""
        before = self._predecessor
        return (
            self._departure.noticed
            and all(line.departure.noticed for line in self.lines if line.role is Role.INPUT)
            and (before is None or before.has_hung_up)
        )

    @property
    def waiting(self) -> bool:
        """Whether its predecessor has yet to hang up."""
        return self._predecessor is not None and not self._departure.has_left

    def open(self) -> None:
        """Dial the front-end's handshake socket, once that may be done. Raises ConfigError."""
        self.tick()
        if self.waiting:
            self._setting.unsettled.add(self)

    def tick(self) -> None:
        """See whether the predecessor has hung up. Raises ConfigError."""
        if self._departure.has_left or (self._predecessor is not None and not self._predecessor.has_hung_up):
            return
        self._predecessor = None
        self._dial()
        early, self._early = self._early, []
        for frames in early:
            self.say(frames)

    def _dial(self) -> None:
        far = self._far = connect_dealer(self._setting.to, self.peer, prepare=self._watch_far)
        self._setting.pump.add(far, self._hear_front_end)
        if self._watch is not None:
            self._setting.pump.add(self._watch.socket, self._look)

    def say(self, frames: list[Frame]) -> None:
        """The engine has said this at the handshake socket."""
        if self.waiting and len(self._early) < MAX_EARLY:
            self._early.append(frames)
        if self._far is None:
            return
        send_nowait(self._far, frames)
        self._ready = self._ready or status(frames) == Step.READY.value
        self._setting.journal.message(Role.HANDSHAKE, Direction.TO_FRONTEND, self.peer, self.number, None, frames)

    def hung_up(self) -> None:
        """The engine's connection to the handshake socket has ended."""
        self._event(f"{self.name} has left the handshake{'' if self._ready else ' before it was ready'}")
        self._leave_handshake()
        if not self._ready:
            self._end(near=True)

    def close(self) -> None:
        """Close everything; what was passed on still leaves."""
        self._leave_handshake()
        for line in self.lines:
            line.close()

    def _watch_far(self, socket: Socket) -> None:
        self._watch = Monitor.of(socket)

    def _leave_handshake(self) -> None:
        pump = self._setting.pump
        self._departure.leave()
        if self._watch is not None:
            self._read_news()
            pump.remove(self._watch.socket)
            self._watch.close()
            self._watch = None
        if self._far is not None:
            pump.remove(self._far)
            close(self._far, None if self._is_up else 0)
            self._far = None

    def _read_news(self) -> bool:
        """Whether the front-end has hung up."""
        while self._watch is not None and (news := self._watch.read()) is not None:
            change, descriptor = news
            if change is Change.DIALLED:
                self._departure.dialled(descriptor)
            elif change is Change.UP:
                self._is_up = True
            elif change is Change.DOWN:
                self._departure.ended()
                if self._is_up:
                    return True
        return False

    def _look(self) -> None:
        if self._read_news():
            while self._far is not None and self._hear():
                pass
            self._event(f"the front-end has closed the handshake with {self.name}")
            self._leave_handshake()
            if not self._ready:
                self._end(near=False)
                self._front_end_gone()

    def _hear_front_end(self) -> None:
        self._hear()

    def _hear(self) -> bool:
        """A word of the front-end's; whether there was one."""
        if self._far is None or (frames := receive_nowait(self._far)) is None:
            return False
        passed = frames
        if len(frames) == 1 and (init := self._init(frames[0])) is not None:
            try:
                passed = [self._rewritten(frames[0], init)]
            except ConfigError as error:
                self._event(f"{self.name} is not given INIT: {error.message}")
                self._end(near=False)
                return True
        self._answer(passed)
        self._setting.journal.message(Role.HANDSHAKE, Direction.TO_ENGINE, self.peer, self.number, None, frames)
        return True

    def _init(self, payload: Frame) -> Init | None:
        try:
            init = decode_init(payload)
        except RemoteProtocolError as error:
            self._event(f"the front-end's word to {self.name} is passed on although it is no INIT: {error.message}")
            return None
        return init

    def _rewritten(self, payload: Frame, init: Init) -> bytes:
        """INIT with our addresses for the front-end's. Raises ConfigError."""
        there = init.addresses
        if len(there.inputs) > MAX_CLIENTS:
            raise ConfigError(f"it names {len(there.inputs)} front-end processes; the limit is {MAX_CLIENTS}")
        for address in filter(None, (*there.inputs, *there.outputs, there.coordinator_input, there.coordinator_output)):
            check_clear(address, self._setting.insecure)
        for line in self.lines:
            line.close()
        dial = Dial(heartbeat=True) if init.muro is not None and HEARTBEAT in init.muro.features else PLAIN
        message = msgspec.msgpack.decode(payload)
        here: dict[str, Any] = message["addresses"]
        here["inputs"] = [self._input(client, address, dial) for client, address in enumerate(there.inputs)]
        here["outputs"] = [self._output(client, address, dial) for client, address in enumerate(there.outputs)]
        if there.coordinator_input is not None:
            here["coordinator_input"] = self._coordinator_input(there.coordinator_input)
        if there.coordinator_output is not None:
            here["coordinator_output"] = self._output(None, there.coordinator_output, PLAIN)
        self._event(f"{self.name} is given INIT for {len(there.inputs)} front-end process(es)")
        return msgspec.msgpack.encode(message)

    def _input(self, client: int, address: str, dial: Dial) -> str:
        near = bind_router(
            self._address(f"i{client}"),
            linger_ms=LAST_WORDS_MS,
            receive_limit=QUEUED,
            prepare=lambda socket: limit_sending(socket, QUEUED),
        )

        def dialled(identity: bytes, watch: Callable[[Socket], object]) -> Socket:
            def ready(socket: Socket) -> None:
                limit_sending(socket, QUEUED)
                watch(socket)

            return connect_dealer(address, identity, receive_limit=QUEUED, dial=dial, prepare=ready)

        return self._line(Role.INPUT, client, near, dialled, addressed=True, two_way=True)

    def _output(self, client: int | None, address: str, dial: Dial) -> str:
        near = bind_pull(self._address(f"o{'c' if client is None else client}"), receive_limit=QUEUED)

        def dialled(identity: bytes, watch: Callable[[Socket], object]) -> Socket:
            return connect_push(address, send_limit=QUEUED, dial=dial)

        role = Role.COORDINATOR_OUTPUT if client is None else Role.OUTPUT
        return self._line(role, client, near, dialled, addressed=False, two_way=False)

    def _coordinator_input(self, address: str) -> str:
        near = bind_xpub(self._address("c"), linger_ms=LAST_WORDS_MS, unlimited=True)

        def dialled(identity: bytes, watch: Callable[[Socket], object]) -> Socket:
            far = connect_xsub(address, identity, linger_ms=LAST_WORDS_MS, unlimited=True)
            watch(far)
            return far

        return self._line(Role.COORDINATOR_INPUT, None, near, dialled, addressed=False, two_way=True)

    def _address(self, role: str) -> str:
        """Where a socket for the engine is bound."""
        listen = self._setting.listen
        if listen.is_ipc:
            return ipc_endpoint(self._setting.directory, f"e{self.number}-{role}")
        return tcp_endpoint(listen.host)

    def _line(
        self, role: Role, client: int | None, near: Socket, dial: Dialler, *, addressed: bool, two_way: bool
    ) -> str:
        # Nobody knows the address yet, so no news are missed.
        line = Line(
            role,
            client,
            self.number,
            self.peer,
            near=near,
            watch=Monitor.of(near),
            dial=dial,
            addressed=addressed,
            two_way=two_way,
            pump=self._setting.pump,
            journal=self._setting.journal,
            unsettled=self._setting.unsettled,
            changed=self._review,
        )
        self.lines.append(line)
        return bound_address(near)

    def _review(self) -> None:
        """See whether a side has gone. Outputs go with the input of the same client, the coordinator's with the last.

        An engine's last words may come by an output after its input was closed.
        """
        inputs = [line for line in self.lines if line.role is Role.INPUT]
        for line in inputs:
            if line.ending is None and not line.closed and (line.near_lost or line.far_lost):
                who = self.name if line.near_lost else f"front-end {line.client}"
                self._event(f"{who} has closed the input of {self.name}", line.client)
                for other in self.lines:
                    if other.client == line.client and line.near_lost:
                        other.catch_up()  # its last words, before the front-end sees that it has gone
                line.end(near=line.near_lost)
        all_gone = all(line.closed or line.ending is not None for line in inputs)
        for line in self.lines:
            if line.role is Role.INPUT or line.closed:
                continue
            partners = [one for one in inputs if one.client == line.client]
            gone = all(one.closed or one.ending is not None for one in partners) if partners else all_gone
            if line.far_lost or any(one.far_lost for one in partners):
                line.end(near=False)
            elif gone and line.near_lost:
                line.end(near=True)

    def _end(self, *, near: bool) -> None:
        for line in self.lines:
            line.end(near=near)

    def _event(self, words: str, client: int | None = None) -> None:
        self._setting.journal.event(
            Role.HANDSHAKE if client is None else Role.INPUT, self.peer, self.number, client, words
        )


def status(frames: list[Frame]) -> str:
    """What an engine calls its word at the handshake socket: HELLO, READY; empty if it is no such word."""
    if len(frames) != 1:
        return ""
    try:
        word = msgspec.msgpack.decode(frames[0], type=dict[str, msgspec.Raw])["status"]
        return msgspec.msgpack.decode(word, type=str)
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError):
        return ""
