"""The asyncio twin of `transport.pump`: sockets and descriptors read from an event loop, without a thread.

Everything here happens in the thread of one event loop. The descriptor of a ZeroMQ socket is edge-triggered in
effect: it says that *something* happened to the socket, and any operation on the socket, a send too, may take
that news away while messages wait. So each call reads until the socket says that it is empty, and who sends on
a socket that is also read must `nudge` it afterwards. A call reads at most `budget` messages and goes on in the
loop's next turn, so that a flood of messages does not starve the tasks that shall consume them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from muro.transport.sockets import Frame, Socket, receive_nowait

OnFrames = Callable[[list[Frame]], None]

BUDGET = 64
"""Messages that are read from one socket in one turn of the event loop."""

_POLLIN = int(zmq.POLLIN)


class AsyncReader:
    """Calls back for messages and readable descriptors in the turns of `loop`.

    Args:
        loop: the running loop; all methods are called in its thread.
        budget: messages per socket and turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, budget: int = BUDGET) -> None:
        self._loop = loop
        self._budget = budget
        self._sockets: dict[Socket, _Source] = {}
        self._descriptors: set[int] = set()

    def watch(self, socket: Socket, on_frames: OnFrames) -> None:
        """Call `on_frames(frames)` for every message, those included that wait already.

        What it raises goes to the loop's exception handler and costs no later message.
        """
        if socket in self._sockets:
            raise ValueError("this socket is already watched")
        source = self._sockets[socket] = _Source(socket, on_frames, self._loop, self._budget)
        self._loop.add_reader(source.fd, source.drain)
        self._loop.call_soon(source.drain)  # what arrived before makes no edge any more

    def watch_descriptor(self, fd: int, on_ready: Callable[[], None]) -> None:
        """Call `on_ready()` in every turn in which `fd` is readable or at its end."""
        self._loop.add_reader(fd, on_ready)
        self._descriptors.add(fd)

    def nudge(self, socket: Socket) -> None:
        """Look at a watched socket in the next turn; needed after each send on it."""
        self._loop.call_soon(self._sockets[socket].drain)

    def read_now(self, socket: Socket, most: int) -> None:
        """Hand out at once what waits in a watched socket, at most `most` messages."""
        if (source := self._sockets.get(socket)) is not None:
            source.read(most)

    def forget(self, source: Socket | int) -> None:
        """Stop calling back for it, at once; do so before it is closed. Unknown ones are ignored."""
        if isinstance(source, int):
            if source in self._descriptors:
                self._descriptors.remove(source)
                self._remove(source)
        elif (found := self._sockets.pop(source, None)) is not None:
            found.stopped = True
            self._remove(found.fd)

    def close(self) -> None:
        """Forget everything; may be called twice, and after the loop was closed (then from any thread)."""
        for socket in list(self._sockets):
            self.forget(socket)
        for fd in list(self._descriptors):
            self.forget(fd)

    def _remove(self, fd: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)


class _Source:
    """One socket: reads it empty, in slices."""

    def __init__(self, socket: Socket, on_frames: OnFrames, loop: asyncio.AbstractEventLoop, budget: int) -> None:
        self.fd: int = socket.fileno()
        self.stopped = False
        self._socket = socket
        self._on_frames = on_frames
        self._loop = loop
        self._budget = budget
        self._items = [(socket, _POLLIN)]

    def drain(self) -> None:
        self.read(self._budget)

    def read(self, left: int) -> None:
        """Hand out what waits, at most `left` messages; the others in the loop's next turn."""
        try:
            # Asking costs 2 us, an empty hand (an exception) four times as much.
            while not self.stopped and zmq.zmq_poll(self._items, 0):
                if not left:
                    self._loop.call_soon(self.drain)
                    return
                left -= 1
                frames = receive_nowait(self._socket)
                if frames is not None:
                    self._on_frames(frames)
        except BaseException:
            self._loop.call_soon(self.drain)  # the messages behind the one that failed make no edge
            raise
