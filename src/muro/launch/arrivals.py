"""Who has come through a door and is still there: engines by the descriptor of their connection.

A message on a ROUTER tells the descriptor that it came by, libzmq's monitor tells which descriptors open and close.
Together they say which engine's connection has ended; heartbeats and the kernel see to it that it ends when the other
side has vanished. One thread at a time uses this; the socket itself may belong to another one.

Whoever comes and goes and was no engine is counted, and told at a limited rate.
"""

from __future__ import annotations

import logging

from muro.ids import EngineRank
from muro.transport.monitor import Change, Monitor
from muro.transport.sockets import Socket

log = logging.getLogger(__name__)


class Arrivals:
    """The connections of one bound socket.

    Args:
        monitor: of that socket, made before it was bound.
        door: what to call it.
    """

    def __init__(self, monitor: Monitor, door: str) -> None:
        self._monitor = monitor
        self._door = door
        self._open: dict[int, EngineRank | None] = {}
        self._lost: list[EngineRank] = []
        self.strangers = 0
        """Connections that have ended and were no engine's."""

    @property
    def socket(self) -> Socket:
        """To be polled; then ask `lost`."""
        return self._monitor.socket

    def note(self, rank: EngineRank, descriptor: int) -> None:
        """A message of this engine has come by this descriptor."""
        self._read()
        if descriptor in self._open:
            self._open[descriptor] = rank
        else:
            self._lost.append(rank)

    def is_of(self, rank: EngineRank, descriptor: int) -> bool:
        """Whether a connection is the one by which this engine has come."""
        self._read()
        return self._open.get(descriptor) == rank

    def lost(self) -> list[EngineRank]:
        """Engines whose connection has ended since the last call; does not wait."""
        self._read()
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Watch no longer; by the owner of the socket."""
        self._monitor.close()

    def _read(self) -> None:
        while (news := self._monitor.read()) is not None:
            change, descriptor = news
            if change is Change.ACCEPTED:
                self._open[descriptor] = None
            elif change is Change.DOWN and descriptor in self._open:
                rank = self._open.pop(descriptor)
                if rank is None:
                    self._count_stranger()
                else:
                    self._lost.append(rank)

    def _count_stranger(self) -> None:
        self.strangers += 1
        if self.strangers & (self.strangers - 1) == 0:  # 1, 2, 4, 8 ...: a flood stays readable
            log.warning(
                "%d connections to the %s socket were no engine's, or of a rank that is taken",
                self.strangers,
                self._door,
            )
