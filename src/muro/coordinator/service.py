"""The coordinator: three sockets around the logic of `parallel` (protocol section 15.3).

Engines subscribe at the first and report at the second; front-ends subscribe at the third and may say that they have
sent a request. When all engines have subscribed, they get READY; whoever comes later makes everybody get it again,
which tells engines that run to say so: perhaps this coordinator is new.

Invariants:
- One thread, which makes and closes its own sockets.
- Nothing that arrives ends it: what is not the protocol is counted and dropped, and the log says so now and then.
- What a slow subscriber does not take in time is dropped: there are newer numbers, and engines ask for READY again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from muro.config import CoordinatorConfig
from muro.errors import RemoteProtocolError
from muro.parallel.load import LoadBoard
from muro.parallel.waves import CoordinatorWave, Orders
from muro.transport.endpoint import check_clear
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, bind_pull, bind_xpub, close, receive_nowait, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.codec import Marker, OutputDecoder, RequestEncoder
from muro.wire.coordination import FirstRequest, Publication, ScaleElasticEP, decode_notice, encode
from muro.wire.frames import COORDINATOR_READY, SUBSCRIBE, UNSUBSCRIBE
from muro.wire.output import EngineCoreOutputs
from muro.wire.releases import layout_for

MAX_MESSAGE_BYTES = 1 << 20
"""What a report may have; nobody sends more than some hundred bytes per message."""
REPORTS_WAITING = 10_000
"""Reports of one engine that wait here to be read."""
BIND_PATIENCE = 5.0
"""Seconds that a predecessor's addresses may still be in use."""
COMPLAIN_EVERY = 60.0
"""Seconds between two words in the log about junk."""

log = logging.getLogger(__name__)


class Coordinator:
    """Relays load and starts waves until asked to stop.

    Args:
        config: addresses, and whom to serve.
        stop: set when it is to end.
        on_turn: called in each turn of its loop, at least every `PUBLISH_AT_LEAST` seconds: it is alive.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        stop: Wakeup,
        on_turn: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._stop = stop
        self._on_turn = on_turn
        self._clock = clock
        self._stopped = False
        self._wave = CoordinatorWave()
        with_kv_usage = layout_for(config.release).minor >= 27
        self._board = LoadBoard(config.num_engines, lockstep=config.lockstep, with_kv_usage=with_kv_usage, now=clock())
        self._outputs = OutputDecoder()
        self._requests = RequestEncoder()
        self._subscribed = 0
        self._sockets: list[Socket] = []
        self.dropped = 0
        """Messages that were not the protocol."""
        self._complained_at = clock() - COMPLAIN_EVERY

    def open(self) -> None:
        """Listen. Raises ConfigError."""
        config = self._config
        for address in (config.input_address, config.output_address, config.stats_address):
            check_clear(address, config.insecure_tcp)
        self._input = bind_xpub(config.input_address, leaving=True, max_bytes=MAX_MESSAGE_BYTES, patience=BIND_PATIENCE)
        self._sockets.append(self._input)
        self._output = bind_pull(
            config.output_address, max_bytes=MAX_MESSAGE_BYTES, receive_limit=REPORTS_WAITING, patience=BIND_PATIENCE
        )
        self._sockets.append(self._output)
        self._stats = bind_xpub(config.stats_address, max_bytes=MAX_MESSAGE_BYTES, patience=BIND_PATIENCE)
        self._sockets.append(self._stats)

    def run(self) -> None:
        """Serve until asked to stop."""
        pump = Pump()
        pump.add(self._stop.fileno(), self._end)
        pump.add(self._input, lambda: self._read(self._input, self._take_subscription))
        pump.add(self._output, lambda: self._read(self._output, self._take_report))
        pump.add(self._stats, lambda: self._read(self._stats, self._take_notice))
        while not self._stopped:
            self._on_turn()
            now = self._clock()
            if now >= self._board.due():
                self._publish_all(now)
            pump.poll(max(1, int((self._board.due() - now) * 1000) + 1))

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        while self._sockets:
            close(self._sockets.pop(), 0)

    def _end(self) -> None:
        self._stopped = True

    def _read(self, socket: Socket, take: Callable[[list[Frame]], bool]) -> None:
        frames = receive_nowait(socket)
        if frames is None:
            return
        try:
            known = take(frames)
        except RemoteProtocolError as error:
            self._drop(str(error))
            return
        if not known:
            self._drop(f"{len(frames)} frames, the first of {len(frames[0])} bytes")

    def _take_subscription(self, frames: list[Frame]) -> bool:
        """What comes at the engines' socket; whether it is known."""
        if frames == [SUBSCRIBE]:
            self._subscribed += 1
            if self._subscribed >= self._board.size:
                self._send(self._input, [COORDINATOR_READY])
            return True
        if frames == [UNSUBSCRIBE]:
            self._subscribed = max(0, self._subscribed - 1)
            if not self._subscribed:
                self._forget()
            return True
        return False

    def _take_report(self, frames: list[Frame]) -> bool:
        message = self._outputs.decode(frames)
        return isinstance(message, Marker) or self._hear(message)

    def _hear(self, message: EngineCoreOutputs) -> bool:
        known = 0 <= message.engine_index < self._board.size
        if known and message.scheduler_stats is not None:
            known = self._board.report(message.engine_index, message.scheduler_stats, self._clock())
        if known and self._config.lockstep:
            if message.start_wave is not None:
                self._obey(self._wave.engine_started(message.engine_index, message.start_wave))
            if message.wave_complete is not None:
                self._obey(self._wave.wave_complete(message.wave_complete))
        return known

    def _take_notice(self, frames: list[Frame]) -> bool:
        """What comes at the front-ends' socket."""
        if frames == [SUBSCRIBE]:
            self._publish_all(self._clock())  # who comes late knows all at once
            return True
        if frames == [UNSUBSCRIBE]:
            return True
        if len(frames) != 1:
            return False
        match decode_notice(frames[0]):
            case FirstRequest() as notice:
                if self._config.lockstep:
                    self._obey(self._wave.first_request(notice))
                return True
            case ScaleElasticEP(count=count):
                # The group of lockstep ranks cannot change while it runs; independent ranks come and go.
                return not self._config.lockstep and self._board.resize(count, self._clock())

    def _forget(self) -> None:
        """All engines have gone, with what they had."""
        for rank in range(self._board.size):
            self._board.lost(rank, self._clock())
        self._obey(self._wave.engines_gone())

    def _obey(self, orders: Orders) -> None:
        if orders.start is not None:
            self._send(self._input, self._requests.start_wave(orders.start))
        if orders.news is not None:
            self._send(self._stats, [encode(orders.news)])

    def _publish_all(self, now: float) -> None:
        counts = self._board.publish(now)
        self._send(self._stats, [encode(Publication(counts, self._wave.wave, self._wave.running))])

    def _send(self, socket: Socket, frames: list[Frame]) -> None:
        send_nowait(socket, frames)  # an XPUB takes everything, and drops what a subscriber has no room for

    def _drop(self, what: str) -> None:
        self.dropped += 1
        now = self._clock()
        if now - self._complained_at >= COMPLAIN_EVERY:
            self._complained_at = now
            log.warning("dropped what is not the protocol, %d messages so far; the last one: %s", self.dropped, what)
