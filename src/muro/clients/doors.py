"""The sockets that engines dial, bound before any engine is started, and the directory of their files.

Over TCP they let in whoever has a key on the list (CURVE), or everybody who can reach them. Therefore an identity is
never taken over while its connection lives, so a stranger cannot take an engine's place; of what each peer sends,
only a little waits here to be read. Once the engines are ready, nobody but their successors is awaited any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from muro.config import ConnectConfig, CurveKeys
from muro.errors import ConfigError, InternalError
from muro.ids import ClientIndex, EngineRank
from muro.launch.arrivals import Arrivals
from muro.transport import sockets
from muro.transport.endpoint import (
    EndpointDirectory,
    check_clear,
    ipc_endpoint,
    is_loopback,
    parse_address,
    tcp_endpoint,
)
from muro.transport.gate import Gate
from muro.transport.keys import new_pair
from muro.transport.monitor import Monitor
from muro.transport.sockets import Guard, Socket
from muro.wire.handshake import MAX_HANDSHAKE_BYTES, Addresses

_BIND_PATIENCE = 0.5
"""Seconds for a port that was named, which a client of this process may have let go of just now."""
_LARGEST_WORD = min(64 << 10, MAX_HANDSHAKE_BYTES)
"""Bytes of one frame on the way to a ROUTER: greetings and ready responses, none of which comes near."""
_WORDS_WAITING = 4
"""Messages of one peer: HELLO and READY at the one, the ready response at the other."""
_OUTPUTS_WAITING = 4096
"""Messages of one engine that wait for a client that reads slowly. The others wait in the engine, which merges them."""


class Shared(msgspec.Struct, frozen=True):
    """Several client processes on this machine have the same engines.

    Each binds its doors at addresses that the others know beforehand. So whoever gives INIT need not ask; and the
    successor of a client that has died listens at the same place, where the engines dial again by themselves. The
    client of the process that starts the engines is the last one; it need not send requests.
    """

    directory: str
    """Where all their doors are; private, and not theirs to remove."""
    clients: int
    """How many there are beside the one that starts the engines."""

    def addresses(self, rank: EngineRank | None = None, generation: int = 0) -> Addresses:
        """What INIT carries of these clients, for the first engines or for one that follows another."""
        directory = EndpointDirectory.attach(self.directory)
        clients = [ClientIndex(client) for client in range(self.clients)]
        return Addresses(
            inputs=[ipc_endpoint(directory, input_role(client, rank, generation)) for client in clients],
            outputs=[ipc_endpoint(directory, output_role(client)) for client in clients],
        )


def input_role(client: ClientIndex, rank: EngineRank | None = None, generation: int = 0) -> str:
    """What the input door of a client is called: the one for the first engines, or that for a successor."""
    return f"input-{client}" if rank is None else f"input-{client}-{rank}-{generation}"


def output_role(client: ClientIndex) -> str:
    """What its output door is called."""
    return f"output-{client}"


class Wall:
    """Where doors can be: a private directory of this machine, or a TCP host with or without a gate.

    Args:
        directory: open, unless `host` is given.
        gate: open; None lets everybody in.
    """

    def __init__(self, directory: EndpointDirectory, host: str | None = None, gate: Gate | None = None) -> None:
        self._directory = directory
        self._host = host
        self._gate = gate

    @classmethod
    def open(cls, config: ConnectConfig, shared: Shared | None = None) -> Wall:
        """Raises ConfigError, also for a host that others can reach if nothing asks who they are."""
        if shared is not None:
            if config.host is not None:
                raise ConfigError("several servers share engines that are all started here; host must not be set")
            return cls(EndpointDirectory.attach(shared.directory))
        directory, gate = EndpointDirectory(config.socket_dir), None
        if config.host is None:
            directory.open()
        elif config.curve_dir is None and (config.ray is None or _may_be_clear(config.host, config.insecure_tcp)):
            check_clear(tcp_endpoint(config.host), config.insecure_tcp)
        else:
            gate = Gate(config.curve_dir, config.curve_secret_fd).open()
        return cls(directory, config.host, gate)

    @property
    def refused(self) -> int:
        """Connections that were refused for their key."""
        return 0 if self._gate is None else self._gate.refused

    def watched_router(self, role: str, port: int = 0) -> tuple[Socket, Arrivals | None]:
        """A bound ROUTER, and its connections where engines may come from elsewhere; both are their owner's to close.

        Raises ConfigError.
        """
        if self._host is None:
            return self.router(role, port), None
        monitors: list[Monitor] = []
        try:
            socket = self.router(role, port, lambda made: monitors.append(Monitor.of(made)))
        except ConfigError:
            for monitor in monitors:
                monitor.close()
            raise
        return socket, Arrivals(monitors[0], role)

    def successors_door(self) -> tuple[Socket, Arrivals]:
        """An input socket for one more engine from elsewhere. Raises ConfigError."""
        socket, arrivals = self.watched_router("input")
        if arrivals is None:
            raise InternalError("engines from elsewhere cannot come in where there is no host")
        return socket, arrivals

    def router(self, role: str, port: int = 0, prepare: Callable[[Socket], object] | None = None) -> Socket:
        """A bound ROUTER; its owner closes it. Raises ConfigError."""
        address = self._address(role, port)
        return sockets.bind_router(
            address,
            max_bytes=_LARGEST_WORD,
            receive_limit=_WORDS_WAITING,
            guard=self._guard,
            prepare=prepare,
            patience=_BIND_PATIENCE if port else 0.0,
        )

    def pull(self, role: str, max_bytes: int) -> Socket:
        """A bound PULL; its owner closes it. Raises ConfigError."""
        address = self._address(role, 0)
        return sockets.bind_pull(address, max_bytes=max_bytes, receive_limit=_OUTPUTS_WAITING, guard=self._guard)

    def forget(self, *roles: str) -> None:
        """Let nobody else dial the sockets of these roles; who is connected stays so."""
        if self._host is None:
            self._directory.forget(roles)

    def engine_keys(self) -> CurveKeys | None:
        """New keys for the engines that are started here, which are let in as long as this is open."""
        if self._gate is None:
            return None
        public, secret = new_pair()
        self._gate.admit(public)
        return CurveKeys(self._gate.public_key, public, secret)

    def close(self) -> None:
        """Remove files, let nobody in any more; may be called twice. Close the sockets first."""
        if self._gate is not None:
            self._gate.close()
        self._directory.close()

    @property
    def _guard(self) -> Guard | None:
        return None if self._gate is None else self._gate.guard

    def _address(self, role: str, port: int) -> str:
        return ipc_endpoint(self._directory, role) if self._host is None else tcp_endpoint(self._host, port)


class Doors:
    """The sockets that engines dial, two of them with their connections."""

    def __init__(
        self,
        wall: Wall,
        handshake: tuple[Socket, Arrivals | None],
        inputs: tuple[Socket, Arrivals | None],
        outputs: Socket,
        shared: Shared | None = None,
    ) -> None:
        self.wall = wall
        """For further doors."""
        self._shared = shared
        self.client = ClientIndex(0 if shared is None else shared.clients)
        """Which one of the engines' clients this is."""
        self.handshake, self.greeters = handshake
        self.handshake_address = sockets.bound_address(self.handshake)
        self.inputs, self.arrivals = inputs
        self.outputs = outputs
        self._output_address = sockets.bound_address(outputs)
        self.engine_keys = wall.engine_keys()
        """With which the engines that are started here dial; None if that is in the clear."""

    @classmethod
    def open(cls, config: ConnectConfig, shared: Shared | None = None) -> Doors:
        """Bind all three. Raises ConfigError; nothing stays open then."""
        client = ClientIndex(0 if shared is None else shared.clients)
        with contextlib.ExitStack() as undo:
            wall = Wall.open(config, shared)
            undo.callback(wall.close)
            handshake = wall.watched_router("handshake", config.handshake_port)
            undo.callback(close_watched, *handshake)
            inputs = wall.watched_router(input_role(client))
            undo.callback(close_watched, *inputs)
            outputs = wall.pull(output_role(client), config.engine.limits.max_message_bytes)
            undo.pop_all()
        return cls(wall, handshake, inputs, outputs, shared)

    @property
    def addresses(self) -> Addresses:
        """What INIT carries."""
        return self.addresses_with(self.inputs)

    def addresses_with(self, inputs: Socket, rank: EngineRank | None = None, generation: int = 0) -> Addresses:
        """The same for the successor of an engine, which finds us behind an input socket of its own."""
        others = Addresses([], []) if self._shared is None else self._shared.addresses(rank, generation)
        return Addresses(
            inputs=[*others.inputs, sockets.bound_address(inputs)],
            outputs=[*others.outputs, self._output_address],
        )

    def settle(self, *, watched: bool, successors: bool) -> None:
        """All engines are in, and other sockets listen only as long as engines may come through them.

        Args:
            watched: whether somebody goes on watching the connections.
            successors: whether engines from elsewhere may greet again at the handshake socket.
        """
        self.wall.forget(input_role(self.client))
        if not watched and self.arrivals is not None:
            self.arrivals.close()
        if not successors:
            close_watched(self.handshake, self.greeters)

    def close(self) -> None:
        """Close the sockets without waiting for what is unsent, remove their files; may be called twice."""
        close_watched(self.handshake, self.greeters)
        close_watched(self.inputs, self.arrivals)
        sockets.close(self.outputs, 0)
        self.wall.close()


def _may_be_clear(host: str, insecure: bool) -> bool:
    """Whether engines that we place ourselves, and so can hand keys of ours, need none."""
    return insecure or is_loopback(parse_address(tcp_endpoint(host)))


def close_watched(socket: Socket, arrivals: Arrivals | None) -> None:
    """Close a socket without waiting for what is unsent, and stop watching it; may be called twice."""
    if arrivals is not None:
        arrivals.close()
    sockets.close(socket, 0)
