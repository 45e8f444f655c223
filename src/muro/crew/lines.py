"""The parent's end of its lines to the servers: one socket for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from muro.crew.line import identity_on_line
from muro.crew.words import MAX_WORD_BYTES, FromServer, ToServer, decode_from_server, encode
from muro.errors import RemoteProtocolError
from muro.transport.aio import AsyncReader
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.transport.sockets import Frame, Socket, bind_router, bound_address, close, send_nowait

log = logging.getLogger(__name__)

_ROLE = "lines"


class Lines:
    """Made in the loop that reads it.

    Args:
        number: of servers.
        hear: takes (index, generation, word); of strangers nothing gets there.
    """

    def __init__(self, number: int, hear: Callable[[int, int, FromServer], None]) -> None:
        self._hear = hear
        self._number = number
        self._reader = AsyncReader(asyncio.get_running_loop())
        self._callers: dict[int, tuple[bytes, int]] = {}
        """Identity and generation of those that have said something, by index."""
        self._opened: list[Socket] = []

    def open(self, directory: EndpointDirectory) -> Lines:
        """Bind. Raises ConfigError."""
        self._socket = bind_router(ipc_endpoint(directory, _ROLE), max_bytes=MAX_WORD_BYTES)
        self._opened.append(self._socket)
        self._reader.watch(self._socket, self._on_frames)
        return self

    @property
    def address(self) -> str:
        """What servers dial."""
        return bound_address(self._socket)

    def say(self, index: int, word: ToServer) -> bool:
        """Send a word to the present process of a server; whether there is one."""
        return self._send(index, encode(word))

    def say_to_all(self, indexes: set[int], word: ToServer) -> None:
        """Send a word to several."""
        encoded = encode(word)
        for index in indexes:
            self._send(index, encoded)

    def forget(self, index: int) -> None:
        """A server has gone."""
        self._callers.pop(index, None)

    def close(self) -> None:
        """Hang up; may be called twice, and without `open`."""
        self._reader.close()
        while self._opened:
            close(self._opened.pop(), 0)

    def _send(self, index: int, encoded: bytes) -> bool:
        caller = self._callers.get(index)
        if caller is None:
            return False
        sent = send_nowait(self._socket, [caller[0], encoded])
        self._reader.nudge(self._socket)
        return sent

    def _on_frames(self, frames: list[Frame]) -> None:
        try:
            index, generation = self._who(bytes(frames[0]))
            if len(frames) != 2:
                raise RemoteProtocolError(f"server {index} sent {len(frames)} frames, not identity and word")
            word = decode_from_server(frames[1])
        except RemoteProtocolError as error:
            log.error("%s", error.message)
            return
        known = self._callers.get(index)
        if known is None or known[1] < generation:
            self._callers[index] = bytes(frames[0]), generation
        self._hear(index, generation, word)

    def _who(self, identity: bytes) -> tuple[int, int]:
        """Index and generation of a server. Raises RemoteProtocolError."""
        _, *numbers = identity.split(b"-")
        if len(numbers) == 2 and all(number.isdigit() and len(number) < 10 for number in numbers):
            index, generation = map(int, numbers)
            if index < self._number and identity_on_line(index, generation) == identity:
                return index, generation
        raise RemoteProtocolError(f"{identity[:40]!r} is no server of this crew")
