"""A server's line to its parent: one socket, read in the server's loop."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from muro.crew.words import FromServer, Membership, ToServer, decode_to_server, encode
from muro.errors import RemoteProtocolError
from muro.transport.aio import AsyncReader
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, close, connect_dealer, send_nowait

log = logging.getLogger(__name__)

_MOST = 1024


def identity_on_line(index: int, generation: int) -> bytes:
    """By which the parent knows a server; a successor is somebody else."""
    return b"server-%d-%d" % (index, generation)


class Line:
    """Made in the loop that reads it; `hear` gets each word, whatever it raises is logged.

    Args:
        membership: whose line it is.
        hear: takes words of the parent.
    """

    def __init__(self, membership: Membership, hear: Callable[[ToServer], None]) -> None:
        self._membership = membership
        self._hear = hear
        self._reader = AsyncReader(asyncio.get_running_loop())
        self._opened: list[Socket] = []

    def open(self) -> Line:
        """Dial. Raises ConfigError."""
        member = self._membership
        self._socket = connect_dealer(member.line, identity_on_line(member.index, member.generation), linger_ms=0)
        self._opened.append(self._socket)
        self._reader.watch(self._socket, self._on_frames)
        return self

    def say(self, word: FromServer) -> None:
        """Send a word; does not wait."""
        send_nowait(self._socket, [encode(word)])
        self._reader.nudge(self._socket)

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Hear what comes, in the midst of something else, until `done()` or for so long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pump = Pump()
        pump.add(self._socket, lambda: self._reader.read_now(self._socket, _MOST))
        while not done() and (left := deadline - loop.time()) > 0:
            pump.poll(math.ceil(left * 1000))
        self._reader.nudge(self._socket)

    def close(self) -> None:
        """Hang up; may be called twice, and without `open`."""
        self._reader.close()
        while self._opened:
            close(self._opened.pop(), 0)

    def _on_frames(self, frames: list[Frame]) -> None:
        try:
            self._hear(decode_to_server(frames[0]))
        except RemoteProtocolError as error:
            log.error("%s", error.message)
