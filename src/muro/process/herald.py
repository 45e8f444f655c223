"""The way to the coordinator: waves and load, when it is there.

Used by whoever has the turn of the output queue. While the coordinator is away a bounded number of messages waits, and
the rest is dropped: when it is back it says READY, and is told all that matters anew.
"""

from __future__ import annotations

from muro.transport.sockets import Socket, close, connect_push, send_nowait
from muro.wire.codec import OutputEncoder
from muro.wire.output import EngineCoreOutputs
from muro.wire.releases import SAFE

WAITING = 256
"""Messages that wait for a coordinator that is away."""


class Herald:
    """Speaks to the coordinator.

    Args:
        address: INIT's `coordinator_output`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: Socket | None = None
        self._encoder = OutputEncoder(SAFE)
        self._buffer = bytearray()

    def open(self) -> None:
        """Connect (sender thread)."""
        self._socket = connect_push(self._address, linger_ms=0, send_limit=WAITING)

    def send(self, message: EngineCoreOutputs) -> None:
        """Send, or drop if there is no room."""
        if self._socket is not None:
            send_nowait(self._socket, self._encoder.encode(message, self._buffer))

    def close(self) -> None:
        """Disconnect; what was not sent is of no use to anybody."""
        if self._socket is not None:
            close(self._socket)
            self._socket = None
