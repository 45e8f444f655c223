"""What happens to the connections of a socket, as libzmq tells it.

A `Monitor` is made by the thread that owns the socket, before it binds or connects, or some news are missed; it may
be read by another one. A lost connection is news because libzmq itself makes a new one and says nothing, while the
messages in between are gone.

libzmq's own I/O thread, which serves every socket of the process, says the news, and waits for ever if they cannot be
delivered. So they are queued without a limit, and end before the socket does (`sockets.close`) or with its monitor.
"""

from __future__ import annotations

import enum
import itertools
import os
import struct

import zmq

from muro.transport.context import context
from muro.transport.sockets import Socket, end_news, receive_nowait


class Change(enum.Enum):
    """What can happen to a connection."""

    ACCEPTED = "accepted"
    """Somebody has dialled; not known yet whether he speaks our language."""
    DIALLED = "dialled"
    """Our own dialling has reached somebody; not known yet who that is."""
    UP = "up"
    """A peer has introduced itself, and messages can pass."""
    DOWN = "down"
    """A connection has ended, whatever it had come to."""
    REFUSED = "refused"
    """We dialled, and were refused for our key."""
    GARBLED = "garbled"
    """The other side does not speak our language, or not with the right keys."""


_CHANGES = {
    int(zmq.EVENT_ACCEPTED): Change.ACCEPTED,
    int(zmq.EVENT_CONNECTED): Change.DIALLED,
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): Change.UP,
    int(zmq.EVENT_DISCONNECTED): Change.DOWN,
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): Change.REFUSED,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): Change.GARBLED,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): Change.GARBLED,
}
_MASK = sum(_CHANGES)
_NUMBERED = (Change.ACCEPTED, Change.DIALLED, Change.DOWN)
_EVENT = struct.Struct("=Hi")
_numbers = itertools.count()


class Monitor:
    """News of the connections of one socket. Poll `socket`, then `read`."""

    def __init__(self, socket: Socket, news: Socket) -> None:
        self._watched = socket
        self.socket = news

    @classmethod
    def of(cls, socket: Socket) -> Monitor:
        """Begin to watch."""
        address = f"inproc://muro-monitor-{next(_numbers)}"
        socket.monitor(address, _MASK)
        news = context().socket(zmq.PAIR)
        news.setsockopt(zmq.LINGER, 0)
        news.setsockopt(zmq.RCVHWM, 0)
        news.connect(address)
        return cls(socket, news)

    def read(self) -> tuple[Change, int] | None:
        """The next change, and the number of the descriptor that it concerns (0: not told); None if there is none."""
        frames = receive_nowait(self.socket)
        if frames is None:
            return None
        event, value = _EVENT.unpack(bytes(frames[0])[: _EVENT.size])
        change = _CHANGES[event]
        return change, value if change in _NUMBERED else 0

    def close(self) -> None:
        """Stop watching; by the owner of the watched socket, before or after that is closed. May be called twice."""
        end_news(self._watched)
        self.socket.close(0)


class Connection:
    """One connection of this process, by its descriptor's number as `Monitor` tells it with DIALLED or ACCEPTED.

    A socket is closed in libzmq's own time, after what was said has left, and nothing is told of that any more; but
    the descriptor shows it. A number is soon used again, so it is known by its inode as well.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._inode = _inode(descriptor)

    @property
    def is_open(self) -> bool:
        """Whether our end of it is still open."""
        return self._inode is not None and _inode(self._descriptor) == self._inode


def _inode(descriptor: int) -> int | None:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None
