"""One client's way out: encode in its layout, send, and hold back what it does not read.

Used by the sender thread alone. What cannot be encoded costs the request or the call it belongs to: the
request ends with ERROR and is aborted in the engine, the caller of an operation is told method and type.
The engine goes on for a while with requests that were ended here; what it says about them is dropped until the
host has settled them, so that nothing follows a final output.

A client that has not even read what was left after that is not read from either, until it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from muro.engine.endings import failed_output
from muro.engine.events import GivenUp, Routed
from muro.errors import LocalProtocolError, RequestFailedError
from muro.ids import ClientIndex
from muro.process.backlog import Backlog
from muro.process.peers import PeerLayouts
from muro.process.queues import InputQueue
from muro.transport.inflight import BufferPool, InFlight
from muro.transport.sockets import Frame, Socket
from muro.wire.codec import OutputEncoder
from muro.wire.failure import call_failure_text
from muro.wire.frames import ENGINE_CORE_DEAD
from muro.wire.ops import WAKE_UP
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, UtilityOutput
from muro.wire.releases import Layout

log = logging.getLogger(__name__)

_WAKE_UP = WAKE_UP.name
"""Front-ends of some releases read its answer only if it is nothing (protocol section 16.5)."""


class Lane:
    """Sends to one client.

    Args:
        ignore: stop reading from this client, or go on.
        limit: bytes in flight from which on messages are held and merged; the same again held, and the
            client's requests are given up.
        largest: bytes of one frame, over which the client's socket would drop the connection.
    """

    def __init__(
        self,
        client: ClientIndex,
        socket: Socket,
        *,
        peers: PeerLayouts,
        in_flight: InFlight,
        pool: BufferPool,
        inbox: InputQueue,
        ignore: Callable[[bool], None],
        limit: int,
        largest: int,
    ) -> None:
        self._client = client
        self._socket = socket
        self._peers = peers
        self._in_flight = in_flight
        self._pool = pool
        self._inbox = inbox
        self._ignore = ignore
        self._limit = limit
        self._largest = largest
        self._backlog = Backlog()
        self._ended: set[str] = set()
        self._ignored = False
        self._layout: Layout | None = None
        self._encoder: OutputEncoder | None = None

    @property
    def holding(self) -> bool:
        """Whether messages are held until the client reads on."""
        return bool(self._backlog)

    def send(self, routed: Routed) -> None:
        """Send a message now, or hold it while the client is too slow."""
        if (self._ended or routed.settled) and not self._without_ended(routed):
            return
        if self._backlog or self._in_flight.is_full(self._socket):
            self._hold(routed)
        else:
            self._encode(routed)

    def relieve(self) -> None:
        """Send what was held if the client has read on."""
        if self._backlog and not self._in_flight.is_full(self._socket):
            self.flush()

    def flush(self) -> None:
        """Send what was held, whatever is in flight."""
        for routed in self._backlog.take():
            self._encode(routed)
        if self._ignored:
            self._ignored = False
            self._ignore(False)

    def send_death(self) -> None:
        """The last word of an engine that failed."""
        self.flush()
        self._in_flight.send(self._socket, [ENGINE_CORE_DEAD])

    def _hold(self, routed: Routed) -> None:
        self._backlog.add(routed)
        if self._backlog.size > self._limit:
            if not self._ignored:
                log.warning("client %d does not read its outputs; its requests are given up", self._client)
                self._ignored = True
                self._ignore(True)
            self._give_up(self._backlog.give_up(), everything=True)

    def _give_up(self, request_ids: list[str], *, everything: bool = False) -> None:
        """Requests end here. The loop hears of it before the client does: an id that comes again comes later."""
        self._ended.update(request_ids)
        self._inbox.put(GivenUp(self._client, request_ids, everything))

    def _without_ended(self, routed: Routed) -> bool:
        """Take out what concerns requests that were ended here; whether anything is left."""
        self._ended.difference_update(routed.settled or ())
        message = routed.message
        message.outputs = [output for output in message.outputs if output.request_id not in self._ended]
        others = (message.scheduler_stats, message.utility_output, message.wave_complete, message.start_wave)
        return bool(message.outputs) or any(part is not None for part in others)

    def _encode(self, routed: Routed) -> None:
        answer = routed.message.utility_output
        if answer is not None and routed.method == _WAKE_UP and not self._peers[self._client].wake_up_gives_bool:
            answer.result = answer.result and [None, None]
        try:
            self._write(routed.message)
        except LocalProtocolError as error:
            self._repair(routed, error)

    def _write(self, message: EngineCoreOutputs) -> None:
        """Raises LocalProtocolError if the message cannot be encoded or is too large; nothing was sent then."""
        layout = self._peers[self._client]
        if self._encoder is None or layout is not self._layout:
            self._layout, self._encoder = layout, OutputEncoder(layout)
        buffer = self._pool.take()
        try:
            frames = self._encoder.encode(message, buffer)
            self._check_size(frames)
        except BaseException:
            self._pool.give(buffer)
            raise
        self._in_flight.send(self._socket, frames, buffer)

    def _check_size(self, frames: list[Frame]) -> None:
        largest = max(memoryview(frame).nbytes for frame in frames)
        if largest > self._largest:
            raise LocalProtocolError(
                f"its message has a part of {largest} bytes; the limit is {self._largest} (max_message_bytes)"
            )

    def _repair(self, routed: Routed, error: LocalProtocolError) -> None:
        """Replace what cannot be encoded by word of it, and send the rest."""
        message = routed.message
        if message.utility_output is not None:
            text = call_failure_text(routed.method, error)
            message.utility_output = UtilityOutput(message.utility_output.call_id, text, None)
            self._write(message)
            return
        message.scheduler_stats = None
        for output in message.outputs:
            try:
                self._write(self._alone(message, output))
            except LocalProtocolError as fault:
                self._fail(message, output, fault)

    def _fail(self, message: EngineCoreOutputs, output: EngineCoreOutput, fault: LocalProtocolError) -> None:
        failed = failed_output(output.request_id, RequestFailedError(f"its output cannot be sent: {fault.message}"))
        if output.finish_reason is None:
            self._give_up([output.request_id])
        self._write(self._alone(message, failed))

    def _alone(self, message: EngineCoreOutputs, output: EngineCoreOutput) -> EngineCoreOutputs:
        return EngineCoreOutputs(engine_index=message.engine_index, outputs=[output], timestamp=message.timestamp)
