"""A client's side of the coordinator: its publications are heard, and it is told when a pause of lockstep ranks ends.

Nothing depends on it: without the coordinator a client balances by what it has in flight itself, and engines wake each
other. libzmq dials a coordinator that has gone until a successor is there, and subscribes again by itself.

Invariants:
- The ear belongs to whoever receives for the client, the mouth to whoever sends; so they are two sockets. What is known
  of the wave changes under the client's lock or in its loop, like everything that a message changes.
- What is not a publication is counted and dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from muro.errors import RemoteProtocolError
from muro.ids import EngineRank
from muro.parallel.waves import FrontEndWave, Rule
from muro.transport import sockets
from muro.transport.sockets import PLAIN, Dial, Frame, Socket, connect_xsub, receive_nowait, send_nowait
from muro.wire.coordination import Publication, decode_publication, encode
from muro.wire.frames import SUBSCRIBE

MAX_MESSAGE_BYTES = 4 << 20
"""What a publication may have: 65,536 ranks with three numbers each have less than half of it."""
_MOST = 1024
"""Publications that are read at once, of which the newest counts."""

log = logging.getLogger(__name__)


class Coordination:
    """What a client hears from a coordinator, and says to it.

    Args:
        address: the coordinator's stats address (`frontend_stats_publish_address` in INIT).
        lockstep: whether the engines are lockstep ranks. Others have no waves, and no notice is given.
        dial: how to connect.
        clock: seconds, monotonic.
    """

    def __init__(
        self, address: str, *, lockstep: bool, dial: Dial = PLAIN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._dial = dial
        # The coordinator is ours, which understands both rules; this one starts all ranks a little sooner.
        self._wave = FrontEndWave(Rule.FRONT_END_NOTIFIES) if lockstep else None
        self._open: list[Socket] = []
        self._clock = clock
        self.counted_at: float | None = None
        """When the last publication came that said how much all engines have."""
        self.dropped = 0
        """Messages that were no publications."""

    def open(self) -> Coordination:
        """Dial and subscribe; does not wait. Raises ConfigError."""
        self._ear = self._connect()
        self._mouth = self._connect()
        send_nowait(self._ear, [SUBSCRIBE])
        return self

    @property
    def ear(self) -> Socket:
        """The socket to poll; then ask `read`, or give each message to `hear`."""
        return self._ear

    @property
    def wave(self) -> int:
        """What a request states as its wave."""
        return 0 if self._wave is None else self._wave.wave

    def read(self) -> Publication | None:
        """What the ear has heard, as one publication: the newest word of each kind. Does not wait."""
        newest: Publication | None = None
        for _ in range(_MOST):
            if (frames := receive_nowait(self._ear)) is None:
                break
            newest = _newer(newest, self.hear(frames))
        return newest

    def hear(self, frames: list[Frame]) -> Publication | None:
        """The publication in a message; None if it is none."""
        try:
            if len(frames) != 1:
                raise RemoteProtocolError(f"publication of the coordinator: {len(frames)} frames, not one")
            return decode_publication(frames[0])
        except RemoteProtocolError as error:
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:  # 1, 2, 4, 8 ...: a flood stays readable
                log.warning("dropped %d messages from the coordinator's socket; the last: %s", self.dropped, error)
            return None

    def heard(self, news: Publication) -> None:
        """Take note of a publication (under the client's lock or in its loop)."""
        if news.counts is not None:
            self.counted_at = self._clock()
        if self._wave is not None:
            self._wave.hears(news)

    def request_sent(self, rank: EngineRank) -> None:
        """A request went to an engine; the coordinator is told if the engines may pause."""
        if self._wave is not None and (notice := self._wave.sends_request(rank)) is not None:
            send_nowait(self._mouth, [encode(notice)])

    def close(self) -> None:
        """Close the sockets; nobody may poll or use them any more. Idempotent."""
        while self._open:
            sockets.close(self._open.pop(), 0)

    def _connect(self) -> Socket:
        socket = connect_xsub(self._address, max_bytes=MAX_MESSAGE_BYTES, dial=self._dial)
        self._open.append(socket)
        return socket


def _newer(old: Publication | None, new: Publication | None) -> Publication | None:
    """Two words of the coordinator as one: news of the wave alone leave the counts as they were."""
    if old is None or new is None:
        return old if new is None else new
    return Publication(old.counts if new.counts is None else new.counts, new.wave, new.running)
