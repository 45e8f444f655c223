"""The sockets that engines dial, bound before any engine is started, and the directory of their files.

Anybody who can reach them may send. An identity is never taken over while its connection lives, so a stranger
cannot take an engine's place; and of what each peer sends, only a little waits here to be read: two of the
sockets are read by nobody once the engines are ready.
"""

from __future__ import annotations

import contextlib

from muro.config import ConnectConfig
from muro.transport import sockets
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint, tcp_endpoint
from muro.transport.sockets import Socket
from muro.wire.handshake import MAX_HANDSHAKE_BYTES, Addresses

_LARGEST_WORD = min(64 << 10, MAX_HANDSHAKE_BYTES)
"""Bytes of one frame on the way to a ROUTER: greetings and ready responses, none of which comes near."""
_WORDS_WAITING = 4
"""Messages of one peer: HELLO and READY at the one, the ready response at the other."""
_OUTPUTS_WAITING = 4096
"""Messages of one engine that wait for a client that reads slowly. The others wait in the engine, which merges them."""


class Doors:
    """The sockets that engines dial, bound before any engine is started."""

    def __init__(self, directory: EndpointDirectory, handshake: Socket, inputs: Socket, outputs: Socket) -> None:
        self._directory = directory
        self.handshake = handshake
        self.inputs = inputs
        self.outputs = outputs

    @classmethod
    def open(cls, config: ConnectConfig) -> Doors:
        """Bind all three. Raises ConfigError; nothing stays open then."""
        largest = config.engine.limits.max_message_bytes
        with contextlib.ExitStack() as undo:
            directory = EndpointDirectory(config.socket_dir)
            undo.callback(directory.close)
            if config.host is None:
                directory.open()

            def address(role: str, port: int = 0) -> str:
                return ipc_endpoint(directory, role) if config.host is None else tcp_endpoint(config.host, port)

            handshake = _router(address("handshake", config.handshake_port))
            undo.callback(sockets.close, handshake, 0)
            inputs = _router(address("input-0"))
            undo.callback(sockets.close, inputs, 0)
            outputs = sockets.bind_pull(address("output-0"), max_bytes=largest, receive_limit=_OUTPUTS_WAITING)
            undo.pop_all()
        return cls(directory, handshake, inputs, outputs)

    @property
    def handshake_address(self) -> str:
        return sockets.bound_address(self.handshake)

    @property
    def addresses(self) -> Addresses:
        """What INIT carries."""
        return Addresses(
            inputs=[sockets.bound_address(self.inputs)],
            outputs=[sockets.bound_address(self.outputs)],
        )

    def close(self) -> None:
        """Close the sockets without waiting for what is unsent, remove their files; may be called twice."""
        for socket in (self.handshake, self.inputs, self.outputs):
            sockets.close(socket, 0)
        self._directory.close()


def _router(address: str) -> Socket:
    return sockets.bind_router(address, max_bytes=_LARGEST_WORD, receive_limit=_WORDS_WAITING)
