"""The sockets that engines dial, bound before any engine is started, and the directory of their files."""

from __future__ import annotations

import contextlib

from muro.config import ConnectConfig
from muro.transport import sockets
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint, tcp_endpoint
from muro.transport.sockets import Socket
from muro.wire.handshake import MAX_HANDSHAKE_BYTES, Addresses


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

            # A new generation of an engine has the identity of its predecessor, hence the handover.
            handshake = sockets.bind_router(
                address("handshake", config.handshake_port), handover=True, max_bytes=MAX_HANDSHAKE_BYTES
            )
            undo.callback(sockets.close, handshake, 0)
            inputs = sockets.bind_router(address("input-0"), handover=True, max_bytes=MAX_HANDSHAKE_BYTES)
            undo.callback(sockets.close, inputs, 0)
            outputs = sockets.bind_pull(address("output-0"), max_bytes=largest)
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
