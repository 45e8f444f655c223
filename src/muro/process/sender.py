"""process_output_sockets: the thread that writes to clients.

Invariants:
- Makes and closes its own sockets. They close with linger, so that last words leave, unless nobody is there to hear
  them.
- Sockets are touched only by who has the turn of the output queue: this thread, or a loop that has nothing else to do
  and may `send_now`. That spares the way over a sleeping thread where there is no forward pass to overlap with.
- What is in the output queue is sent in order; a client that does not read delays nobody but itself.
- If it ends by an error, the loop hears of it as an event and the engine fails. The death notice then cannot
  be sent any more: exit code and progress page tell.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

from muro.config import Limits
from muro.engine.events import ExecutorFailed, Routed
from muro.errors import InternalError
from muro.ids import COORDINATOR, ClientIndex
from muro.observe.log import TOLD
from muro.process.attention import Attention
from muro.process.herald import Herald
from muro.process.lane import Lane
from muro.process.peers import PeerLayouts
from muro.process.queues import Control, InputQueue, OutputQueue
from muro.transport.inflight import BufferPool, InFlight
from muro.transport.sockets import PLAIN, Dial, Socket, close, connect_push
from muro.wire.handshake import Addresses

HOLDING_STEP = 0.01
"""Seconds between two looks at a client that is too slow, while messages are held for it."""
RELEASE_STEP = 1.0
"""Seconds after which idle buffers that libzmq has let go of are taken back."""

log = logging.getLogger(__name__)


class Sender:
    """Empties the output queue towards every client."""

    def __init__(
        self,
        *,
        addresses: Addresses,
        peers: PeerLayouts,
        inbox: InputQueue,
        outbox: OutputQueue,
        attention: Attention,
        limits: Limits,
        dial: Dial = PLAIN,
    ) -> None:
        self._addresses = addresses
        self._peers = peers
        self._inbox = inbox
        self._outbox = outbox
        self._attention = attention
        self._limits = limits
        self._dial = dial
        self._in_flight: InFlight | None = None
        coordinator = addresses.coordinator_output
        self._herald = Herald(coordinator) if coordinator is not None else None
        self._lanes: list[Lane] = []
        """One per client while the sockets are open."""
        self._thread = threading.Thread(target=self._run, name="muro-sender", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def send_now(self, items: list[Routed]) -> bool:
        """Send in the calling thread, if nothing waits to be sent before; otherwise nothing happens (loop thread)."""
        turn = self._outbox.turn
        if not turn.acquire(blocking=False):
            return False
        try:
            if len(self._outbox) or not self._lanes:
                return False
            self._send(items)
            if self._in_flight is not None and self._look_after(self._in_flight) is not None:
                self._outbox.wake()  # from now on the sender thread must look, too
            return True
        finally:
            turn.release()

    def join(self, timeout: float) -> bool:
        """Wait until everything was handed to the sockets after a `Control`; whether it was."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        sockets: list[Socket] = []
        last = Control.END
        try:
            last = self._serve(sockets)
        except BaseException as error:
            log.exception("the sender thread failed", extra=TOLD)
            self._inbox.put(ExecutorFailed(InternalError(f"the output thread died: {type(error).__name__}: {error}")))
        finally:
            with self._outbox.turn:
                self._lanes = []
                for client, socket in enumerate(sockets):
                    in_vain = last is Control.LOST or self._attention.has_gone(ClientIndex(client))
                    close(socket, 0 if in_vain else None)
                if self._herald is not None:
                    self._herald.close()

    def _serve(self, sockets: list[Socket]) -> Control:
        """Send until told to end; returns what it was told."""
        outbox = self._outbox
        pool = BufferPool(len(self._addresses.outputs) + 1)
        in_flight = self._in_flight = InFlight(self._limits.max_bytes_in_flight, pool)
        # Heartbeats go over the input connections alone: here a front-end that does not read would stop them.
        dial = Dial(self._dial.curve)
        sockets.extend(connect_push(address, dial=dial) for address in self._addresses.outputs)
        with outbox.turn:
            if self._herald is not None:
                self._herald.open()
            self._lanes = [self._lane(ClientIndex(i), socket, in_flight, pool) for i, socket in enumerate(sockets)]
        patience = None
        while True:
            outbox.wait(patience)
            with outbox.turn:
                item = outbox.take()
                if isinstance(item, Control):
                    self._end(item)
                    return item
                if item is not None:
                    self._send(item)
                patience = self._look_after(in_flight)
            if outbox.caught_up():
                self._inbox.wake()

    def _lane(self, client: ClientIndex, socket: Socket, in_flight: InFlight, pool: BufferPool) -> Lane:
        return Lane(
            client,
            socket,
            peers=self._peers,
            in_flight=in_flight,
            pool=pool,
            inbox=self._inbox,
            ignore=partial(self._attention.ignore, client),
            limit=self._limits.max_bytes_in_flight,
            largest=self._limits.max_message_bytes,
        )

    def _send(self, items: list[Routed]) -> None:
        for routed in items:
            if routed.client != COORDINATOR:
                self._lanes[routed.client].send(routed)
            elif self._herald is not None:
                self._herald.send(routed.message)

    def _look_after(self, in_flight: InFlight) -> float | None:
        """Take back lent buffers, and send what was held for those who have read on.

        Returns the seconds after which to look again; None if nothing is held or lent.
        """
        in_flight.release()
        holding = [lane for lane in self._lanes if lane.holding]
        for lane in holding:
            lane.relieve()
        return HOLDING_STEP if holding else RELEASE_STEP if in_flight.has_waiting() else None

    def _end(self, last: Control) -> None:
        for lane in self._lanes:
            if last is Control.DEAD:
                lane.send_death()
            elif last is Control.END:
                lane.flush()
