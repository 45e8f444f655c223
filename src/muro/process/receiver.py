"""process_input_sockets: the thread that reads what clients send.

Invariants:
- Makes and closes its own sockets; nobody else touches them.
- Sends the ready response on every input socket before anything else, then waits for the coordinator's gate. Where
  there are heartbeats it is `ready` only when one has followed, so that we are missed from the beginning.
- Decodes, admits, and calls only `host.prepare` of the engine. What fails here costs one message: a request
  that can be identified is answered with ERROR, the rest is counted and dropped.
- What is too large is refused from its first bytes: reading it would hold up everybody else.
- A front-end elsewhere whose connection has ended is lost: its requests end, and when nobody is left, `on_lost` is
  called. Engines that were started by their front-end end with it in any case; if there are several (`comes_back`),
  the requests of one that is lost end, and its successor comes at the same address.
- From a client that is ignored nothing is read; what it sends stays with it.
- Asked to stop, it first reads what has arrived already: the end of the process answers it.
- If it ends by an error, the loop hears of it as an event and the engine fails; it never ends silently.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from muro.config import Limits
from muro.engine.admission import Admission
from muro.engine.checks import prompt_length, prompt_too_long
from muro.engine.events import Abort, Add, Call, CoordinatorUp, Event, ExecutorFailed, GivenUp, StartWave
from muro.engine.host import EngineHost
from muro.errors import BodyTooLargeError, InternalError, InvalidRequestError, RequestError
from muro.ids import COORDINATOR, ClientIndex
from muro.observe.log import TOLD
from muro.process.attention import Attention
from muro.process.contact import CONNECT_PATIENCE, Contact
from muro.process.peers import PeerLayouts
from muro.process.queues import InputQueue, OutputQueue
from muro.transport.monitor import Change, Monitor
from muro.transport.page import ProgressPage
from muro.transport.pump import Pump
from muro.transport.sockets import (
    HEARTBEAT_IVL_MS,
    PLAIN,
    Dial,
    Frame,
    Socket,
    close,
    connect_dealer,
    connect_xsub,
    receive_nowait,
    send_nowait,
)
from muro.transport.wakeup import Wakeup
from muro.wire.codec import RequestDecoder
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.frames import COORDINATOR_READY, SUBSCRIBE, RequestType
from muro.wire.handshake import Addresses
from muro.wire.request import EngineCoreRequest

LAST_LOOK = 0.5
"""Seconds that reading what has arrived already may take when the thread is asked to stop."""

HEARTBEAT_HEAD_START = 1.5 * HEARTBEAT_IVL_MS / 1000
"""Seconds within which a heartbeat is sent on a connection that stands."""

MESSAGES_WAITING = 4096
"""Messages of one client that wait here to be read; the others wait at the client."""

GLANCE_BYTES = 1 << 20
"""Size of a message from which on its beginning is looked at before it is read."""

log = logging.getLogger(__name__)


class Receiver:
    """Reads every client's input socket and fills the input queue."""

    def __init__(
        self,
        *,
        addresses: Addresses,
        identity: bytes,
        ready_response: bytes,
        host: EngineHost,
        admission: Admission,
        peers: PeerLayouts,
        inbox: InputQueue,
        outbox: OutputQueue,
        attention: Attention,
        limits: Limits,
        page: ProgressPage,
        dial: Dial = PLAIN,
        on_lost: Callable[[], None] | None = None,
        comes_back: bool = False,
        on_coordinator_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._addresses = addresses
        self._identity = identity
        self._ready_response = ready_response
        self._host = host
        self._admission = admission
        self._peers = peers
        self._inbox = inbox
        self._outbox = outbox
        self._attention = attention
        self._limits = limits
        self._dial = dial
        self._on_lost = on_lost
        self._comes_back = comes_back
        self._on_coordinator_up = on_coordinator_up
        self._contact: Contact | None = None
        self._monitors: list[Monitor] = []
        self._page = page
        self._queued = 0
        self._glance = min(GLANCE_BYTES, limits.max_message_bytes)
        self._decoder = RequestDecoder()
        self._stop = Wakeup()
        self._stopped = False
        self.ready = False
        """Whether the ready responses are sent and the coordinator has opened the gate."""
        self.failure: BaseException | None = None
        """What ended the thread, if it ended by an error."""
        self.news = Wakeup()
        """Set when `ready` or `failure` has changed."""
        self._thread = threading.Thread(target=self._run, name="muro-receiver", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._stop.open()
        self.news.open()
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread and close its sockets. Idempotent."""
        self._stopped = True
        if self._thread.ident is None:
            return
        self._stop.set()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._stop.close()
            self.news.close()

    def _run(self) -> None:
        sockets: list[Socket] = []
        try:
            self._serve(sockets)
        except BaseException as error:
            log.exception("the receiver thread failed", extra=TOLD)
            cause = InternalError(f"the input thread died: {type(error).__name__}: {error}")
            self._inbox.put(ExecutorFailed(cause))
            self.failure = error
            self.news.set()
        finally:
            lost = self._contact is not None and self._contact.all_lost
            for socket in sockets:
                close(socket, 0 if lost else None)
            for monitor in self._monitors:
                monitor.close()

    def _serve(self, sockets: list[Socket]) -> None:
        pump = Pump()
        pump.add(self._stop.fileno(), lambda: None)  # ends the poll; `_stopped` says why
        if watched := self._on_lost is not None or self._comes_back:
            self._contact = Contact(len(self._addresses.inputs), time.monotonic(), comes_back=self._comes_back)
        readers: dict[ClientIndex, tuple[Socket, Callable[[], None]]] = {}
        for index, address in enumerate(self._addresses.inputs):
            socket = connect_dealer(
                address,
                self._identity,
                max_bytes=4 * self._limits.max_message_bytes,
                receive_limit=MESSAGES_WAITING,
                dial=self._dial,
                prepare=partial(self._watch, pump, index) if watched else None,
            )
            sockets.append(socket)
            readers[ClientIndex(index)] = socket, self._reader(socket, ClientIndex(index))
            pump.add(*readers[ClientIndex(index)])
        pump.add(self._attention.news.fileno(), partial(self._attend, pump, readers))
        gate = None
        if self._addresses.coordinator_input is not None:
            gate = connect_xsub(self._addresses.coordinator_input, self._identity)
            sockets.append(gate)
            pump.add(gate, self._gate_reader(gate))
            send_nowait(gate, [SUBSCRIBE])
        for socket in sockets:
            if socket is not gate:
                send_nowait(socket, [self._ready_response])
        if self._dial.heartbeat:
            self._let_heartbeats_pass(pump)
        if gate is None:
            self._open()
        while not self._stopped:
            pump.poll(self._patience_ms())
        # Who sent before we stopped gets an answer, too; some front-ends would wait for it for ever.
        pump.remove(self._stop.fileno())
        end = time.monotonic() + LAST_LOOK
        while pump.poll(0) and time.monotonic() < end:
            pass

    def _attend(self, pump: Pump, readers: dict[ClientIndex, tuple[Socket, Callable[[], None]]]) -> None:
        """Read from those clients that are not ignored."""
        self._attention.news.clear()
        for client, (socket, read) in readers.items():
            if self._attention.ignores(client):
                pump.remove(socket)
            else:
                pump.add(socket, read)
        self._page.clients_ignored(sum(map(self._attention.ignores, readers)))

    def _watch(self, pump: Pump, client: int, socket: Socket) -> None:
        """Take note of what happens to the connection to a client."""
        monitor = Monitor.of(socket)
        self._monitors.append(monitor)

        def read() -> None:
            changes = []
            while (news := monitor.read()) is not None:
                changes.append(news[0])
            for position, change in enumerate(changes):
                if self._contact is None:
                    return
                if change is Change.UP:
                    self._contact.up(client)
                    self._attention.mark_gone(ClientIndex(client), False)
                elif change is Change.DOWN and self._contact.down(client):
                    if self._comes_back and Change.UP not in changes[position:]:  # else it might be its successor's
                        self._read_out(socket, ClientIndex(client))
                    self._lose(client, "its connection has ended")

        pump.add(monitor.socket, read)  # before the socket itself: the end of a connection is seen before the next one

    def _read_out(self, socket: Socket, client: ClientIndex) -> None:
        """Take what a client that has gone had still sent, so that all its requests are known when they are ended."""
        for _ in range(MESSAGES_WAITING):
            if (frames := receive_nowait(socket)) is None:
                return
            self._take(client, frames)

    def _let_heartbeats_pass(self, pump: Pump) -> None:
        """Wait until all connections stand, or are given up, and then for as long as the next heartbeat takes.

        A heartbeat lets the other side miss us if nothing follows; any other message ends that until the next one.
        """
        passed_at: float | None = None
        while not self._stopped:
            patience = self._patience_ms()
            if patience is None:
                now = time.monotonic()
                passed_at = passed_at or now + HEARTBEAT_HEAD_START
                if now >= passed_at:
                    return
                patience = int((passed_at - now) * 1000) + 1
            pump.poll(patience)

    def _patience_ms(self) -> int | None:
        """How long to poll; meanwhile those who cannot be reached in time are given up."""
        if self._contact is None or (due := self._contact.due(now := time.monotonic())) is None:
            return None
        for client in self._contact.late(now):
            self._lose(client, f"it could not be reached in {CONNECT_PATIENCE:g} s")
        return int(due * 1000) + 1

    def _lose(self, client: int, how: str) -> None:
        level = logging.INFO if self._comes_back else logging.WARNING  # whoever started it tells of its end as well
        log.log(level, "front-end %d at %s is lost: %s", client, self._addresses.inputs[client], how)
        self._attention.mark_gone(ClientIndex(client), True)
        self._inbox.put(GivenUp(ClientIndex(client), [], everything=True))
        if self._contact is not None and self._contact.all_lost and self._on_lost is not None:
            self._on_lost()

    def _open(self) -> None:
        self.ready = True
        self.news.set()

    def _reader(self, socket: Socket, origin: ClientIndex) -> Callable[[], None]:
        def read() -> None:
            # One message a turn: no client starves the others, and asking an empty socket costs more than a poll.
            frames = receive_nowait(socket)
            if frames is not None:
                self._take(origin, frames)

        return read

    def _gate_reader(self, socket: Socket) -> Callable[[], None]:
        def read() -> None:
            frames = receive_nowait(socket)
            if frames == [COORDINATOR_READY]:
                if self.ready:
                    self._on_coordinator_up()  # now: the loop may wait for ranks that wait for the coordinator
                self._open()
                self._inbox.put(CoordinatorUp())
            elif frames is not None and frames[0] == RequestType.START_DP_WAVE:
                self._take(COORDINATOR, frames)
            elif frames is not None:
                self._page.frame_dropped()

        return read

    def _take(self, origin: ClientIndex, frames: Sequence[Frame]) -> None:
        """Deal with one message; the page says that it is being done, should it hang."""
        self._page.message_begun()
        self._handle(origin, frames)
        self._page.message_done(self._queued)

    def _handle(self, origin: ClientIndex, frames: Sequence[Frame]) -> None:
        size = sum(map(len, frames))
        if size > self._glance and self._refuse_unread(origin, frames, size):
            return
        try:
            message = self._decoder.decode(frames)
        except Exception as error:  # not only RemoteProtocolError: no message may end this thread
            self._refuse(origin, frames, error)
            return
        match message:
            case EngineCoreRequest():
                self._peers.learn(origin, self._decoder.add_length(frames))
                self._add(origin, message, size)
            case AbortRequest():
                event = Abort(origin, message.request_ids)
                self._host.abort_soon(event)
                self._pass_on(event)
            case UtilityRequest():
                client = self._client(message.client_index, origin)
                self._peers.learn_call(client, message.method)
                self._pass_on(Call(client, message.call_id, message.method, message.args))
            case StartDPWave():
                self._pass_on(StartWave(message.wave, message.exclude, origin))

    def _add(self, origin: ClientIndex, request: EngineCoreRequest, size: int) -> None:
        client = self._client(request.client_index, origin)
        try:
            if request.client_index != client:
                raise InvalidRequestError(
                    f"client_index is {request.client_index}, but there are {len(self._addresses.outputs)} clients"
                )
            self._admission.check(size)
            prepared = self._host.prepare(request)
        except Exception as error:
            self._reject(client, request.request_id, error)
            return
        self._admission.admit(size)
        length = prompt_length(request)
        self._pass_on(Add(client, origin, request.request_id, request.current_wave, prepared, size, length))

    def _pass_on(self, event: Event) -> None:
        self._queued += 1
        self._inbox.put(event)

    def _refuse_unread(self, origin: ClientIndex, frames: Sequence[Frame], size: int) -> bool:
        """Refuse a message that is too large, or whose prompt is; whether it was refused."""
        heading = self._decoder.heading(frames)
        limit = self._limits.max_message_bytes
        if size > limit:
            error: RequestError = BodyTooLargeError(f"the message has {size} bytes; the limit is {limit}")
            if heading is None:
                self._refuse(origin, frames, error)
                return True
        elif heading is not None and heading[1] > self._host.info.max_model_len:
            error = prompt_too_long(heading[1], self._host.info)
        else:
            return False
        self._reject(origin, heading[0], error)
        return True

    def _refuse(self, origin: ClientIndex, frames: Sequence[Frame], error: Exception) -> None:
        """A message that is not the protocol: answer it if it is a request or a call that can be identified."""
        if (known := self._decoder.salvage(frames)) is not None:
            request_id, client_index = known
            self._reject(self._client(client_index, origin), request_id, InvalidRequestError(str(error)))
        elif (call := self._decoder.salvage_call(frames)) is not None:
            client_index, call_id, method = call
            event = Call(self._client(client_index, origin), call_id, method, [])
            self._outbox.put([self._host.failed_call(event, error)])
        else:
            self._page.frame_dropped()

    def _reject(self, client: ClientIndex, request_id: str, error: Exception) -> None:
        self._outbox.put([self._host.rejection(client, request_id, error)])

    def _client(self, client_index: int, origin: ClientIndex) -> ClientIndex:
        """Where answers go: where the peer says, or back to where the message came from."""
        return ClientIndex(client_index) if 0 <= client_index < len(self._addresses.outputs) else origin
