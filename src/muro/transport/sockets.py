"""Sockets: the one place where they are made and where their options are set (protocol section 2).

Nothing here blocks but `flush`, and a bind that is given patience. Sending queues of libzmq are unlimited (high-water
mark 0): who sends too much is the business of admission (towards an engine) and of `transport.inflight` (towards a
client), not of a send that blocks. Receiving queues can be limited, for each connection: what is over the limit stays
with its sender, so a socket that is read slowly, or by nobody any more, costs no memory however much strangers send.

Two choices differ from vLLM's and are invisible to a peer: our ROUTERs are *mandatory*, so a message to an identity
that is not connected is refused instead of lost; and no kernel buffers are enlarged, because what lies in them
cannot be counted.

A socket belongs to one thread at a time. Handing it over needs a full barrier (a queue, a join).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import zmq

from muro.config import CurveKeys
from muro.errors import ConfigError, InternalError
from muro.transport.context import context
from muro.transport.endpoint import Endpoint, parse_address, resolve

Socket: TypeAlias = "zmq.Socket[bytes]"
Frame: TypeAlias = "bytes | bytearray | memoryview"

HANDSHAKE_LINGER_MS = 5000
"""How long a closed handshake DEALER goes on trying to say its last words."""
OUTPUT_LINGER_MS = 4000
"""The same for an output PUSH."""

HEARTBEAT_IVL_MS = 250
"""How often a connecting socket of ours asks a peer of ours for a sign of life."""
HEARTBEAT_TIMEOUT_MS = 3000
"""After how much silence the asking side drops the connection, and the asked one."""

_BIND_STEP = 0.02

KEEPALIVE_IDLE_S = 2
KEEPALIVE_PROBES = 3
"""For peers that know no heartbeats: after so much silence the kernel asks theirs, so often, once a second."""

LARGE_FRAME = 64 << 10
"""Received frames of this size and over are handed out where they lie instead of being copied."""

# Plain ints: combining pyzmq's flag enums costs more than a send.
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE) | _DONTWAIT

send_frame = zmq.backend.Socket.send
"""`send_frame(socket, frame, flags)`: `zmq.Socket.send` without its search for options that nobody here gives,
which costs as much as the send itself."""

_RCVMORE = int(zmq.RCVMORE)
_get_option = zmq.backend.Socket.get


class Guard(msgspec.Struct, frozen=True):
    """What a bound socket asks of those who dial: CURVE, and a key that the gate of this domain lets in."""

    secret_key: str
    domain: str

    def __repr__(self) -> str:
        return f"Guard(domain={self.domain!r})"


class Dial(msgspec.Struct, frozen=True):
    """How an engine's sockets connect."""

    curve: CurveKeys | None = None
    """None: in the clear."""
    heartbeat: bool = False
    """Whether both sides shall notice a peer that has vanished. For peers that are known as ours: others may not
    understand the question."""


PLAIN = Dial()


def bind_router(
    address: str,
    *,
    handover: bool = False,
    linger_ms: int = 0,
    max_bytes: int | None = None,
    receive_limit: int = 0,
    guard: Guard | None = None,
    prepare: Callable[[Socket], object] | None = None,
    patience: float = 0.0,
) -> Socket:
    """A ROUTER: the handshake socket, or one front-end's input socket.

    Args:
        address: see `endpoint.ipc_endpoint` and `endpoint.tcp_endpoint`.
        handover: whether a new peer takes over an identity whose old connection still lives. Anybody who can reach
            the socket may then take an engine's place.
        linger_ms: how long messages that were not yet sent live on after `close`.
        max_bytes: a peer that sends a larger frame is disconnected.
        receive_limit: messages of one peer that wait here to be read; 0 for any number.
        guard: who may dial; None for everybody.
        prepare: called with the socket before it binds.
        patience: seconds to go on trying while the address is in use: a socket that was closed just now listens on
            until a thread of libzmq's has seen to it.

    Raises:
        ConfigError: the address cannot be bound.
    """
    socket = _socket(zmq.ROUTER, linger_ms, max_bytes, receive_limit)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, int(handover))
    if prepare is not None:
        prepare(socket)
    return _bind(socket, address, guard, patience)


def allow_handover(router: Socket, allowed: bool) -> None:
    """Whether from now on a peer may take over an identity whose old connection lives (its owner's thread)."""
    router.setsockopt(zmq.ROUTER_HANDOVER, int(allowed))


def sweep(socket: Socket, most: int) -> None:
    """Throw away what waits at a socket that is only sent with, `most` messages at once.

    Where the limit of a connection is reached, libzmq reads no more of it, so it does not even notice that the peer
    has hung up, and the descriptor stays. A listening socket cannot be told to listen no more: with it, libzmq ends
    all connections that came through it.
    """
    for _ in range(most):
        if receive_nowait(socket) is None:
            return


def bind_pull(
    address: str,
    *,
    max_bytes: int | None = None,
    receive_limit: int = 0,
    guard: Guard | None = None,
    patience: float = 0.0,
) -> Socket:
    """A PULL: one front-end's output socket, or the coordinator's. Raises ConfigError."""
    return _bind(_socket(zmq.PULL, 0, max_bytes, receive_limit), address, guard, patience)


def bind_xpub(
    address: str,
    *,
    leaving: bool = False,
    linger_ms: int = 0,
    max_bytes: int | None = None,
    patience: float = 0.0,
    unlimited: bool = False,
) -> Socket:
    """An XPUB of the coordinator: every subscription is delivered, repeated ones too. Raises ConfigError.

    With `leaving` the end of each is delivered as well, also if it ends with its connection.
    """
    socket = _socket(zmq.XPUB, linger_ms, max_bytes, unlimited=unlimited)
    socket.setsockopt(zmq.XPUB_VERBOSER if leaving else zmq.XPUB_VERBOSE, 1)
    return _bind(socket, address, None, patience)


def connect_dealer(
    address: str,
    identity: bytes,
    *,
    linger_ms: int = HANDSHAKE_LINGER_MS,
    max_bytes: int | None = None,
    receive_limit: int = 0,
    dial: Dial = PLAIN,
    prepare: Callable[[Socket], object] | None = None,
) -> Socket:
    """A DEALER that carries an engine's identity; `prepare` is called with it before it connects.

    Raises ConfigError if the address makes no sense.
    """
    socket = _socket(zmq.DEALER, linger_ms, max_bytes, receive_limit)
    socket.setsockopt(zmq.ROUTING_ID, identity)
    if prepare is not None:
        prepare(socket)
    return _connect(socket, address, dial)


def connect_push(address: str, *, linger_ms: int = OUTPUT_LINGER_MS, send_limit: int = 0, dial: Dial = PLAIN) -> Socket:
    """A PUSH towards one front-end or the coordinator; takes messages before the connection stands.

    With a `send_limit` it refuses more than so many that could not be sent yet.
    """
    socket = _socket(zmq.PUSH, linger_ms, None)
    limit_sending(socket, send_limit)
    return _connect(socket, address, dial)


def connect_xsub(
    address: str,
    identity: bytes | None = None,
    *,
    linger_ms: int = 0,
    max_bytes: int | None = None,
    dial: Dial = PLAIN,
    unlimited: bool = False,
) -> Socket:
    """An XSUB: an engine's ear to the coordinator (with its identity), or a front-end's (without)."""
    socket = _socket(zmq.XSUB, linger_ms, max_bytes, unlimited=unlimited)
    if identity is not None:
        socket.setsockopt(zmq.ROUTING_ID, identity)
    return _connect(socket, address, dial)


def limit_sending(socket: Socket, messages: int) -> None:
    """Let a socket that is not bound or connected yet take no more messages than these before some have left."""
    socket.setsockopt(zmq.SNDHWM, messages)


def bound_address(socket: Socket) -> str:
    """Where a bound socket really listens: the port is a real one, an IPv6 host is in brackets."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def send_nowait(socket: Socket, frames: Sequence[Frame]) -> bool:
    """Send one message; the frames may be reused as soon as this returns.

    False if it cannot be taken: for a ROUTER, the identity in front is not connected. Nothing was sent then.
    """
    last = len(frames) - 1
    for position, frame in enumerate(frames):
        try:
            send_frame(socket, frame, _DONTWAIT if position == last else _SNDMORE)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            if position:
                raise InternalError(f"frame {position} was refused after those before it were taken") from error
            return False
    return True


def receive_nowait(socket: Socket) -> list[Frame] | None:
    """One whole message, or None if there is none. Auxiliary frames of `LARGE_FRAME` and over are memoryviews.

    The first two frames hold type or identity and payload, which are small as a rule: copying them is cheaper
    than frame objects.

    An empty hand costs several microseconds (an exception): ask after a poll said that there is something.
    """
    try:
        frames: list[Frame] = [socket.recv(_DONTWAIT)]
    except zmq.Again:
        return None
    if not _get_option(socket, _RCVMORE):  # libzmq delivers a message whole: if there is more, it is here
        return frames
    frames.append(socket.recv(_DONTWAIT))
    if not _get_option(socket, _RCVMORE):
        return frames
    while True:
        frame = socket.recv(_DONTWAIT, False)
        frames.append(frame.bytes if len(frame) < LARGE_FRAME else frame.buffer)
        if not frame.more:
            return frames


def receive_from(socket: Socket) -> tuple[list[Frame], int] | None:
    """As `receive_nowait`, with the descriptor of the connection that the message came by; 0 if nobody can tell."""
    try:
        first = socket.recv(_DONTWAIT, False)
    except zmq.Again:
        return None
    frames: list[Frame] = [first.bytes]
    frames += [frame.bytes for frame in socket.recv_multipart(_DONTWAIT, False)] if first.more else []
    try:
        return frames, int(first.get(zmq.SRCFD))
    except zmq.ZMQError:
        return frames, 0


def close(socket: Socket, linger_ms: int | None = None) -> None:
    """Close; unsent messages live on for `linger_ms` (None: as the socket was made). May be called twice.

    Nothing is told to its monitor any more: the last news could come when nobody is there to hear them, and libzmq's
    I/O thread would wait for ever.
    """
    end_news(socket)
    socket.close(linger_ms)


def end_news(socket: Socket) -> None:
    """Tell a socket's monitor, if it has one, nothing more; nothing happens if the socket is closed."""
    if not socket.closed:
        socket.monitor(None, 0)  # None ends it


def _socket(
    kind: int, linger_ms: int, max_bytes: int | None, receive_limit: int = 0, *, unlimited: bool = True
) -> Socket:
    socket = context().socket(kind)
    socket.setsockopt(zmq.LINGER, linger_ms)
    if unlimited:
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, receive_limit)
    if max_bytes is not None:
        socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    return socket


def _bind(socket: Socket, address: str, guard: Guard | None, patience: float = 0.0) -> Socket:
    deadline = time.monotonic() + patience
    try:
        _keep_alive(socket)
        if guard is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt_string(zmq.CURVE_SECRETKEY, guard.secret_key)
            socket.setsockopt_string(zmq.ZAP_DOMAIN, guard.domain)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # if nobody answers for the gate, it is shut
        endpoint = resolve(parse_address(address))
        _set_family(socket, endpoint)
        while not _try_bind(socket, endpoint, last=time.monotonic() >= deadline):
            time.sleep(_BIND_STEP)
    except zmq.ZMQError as error:
        close(socket, 0)
        raise ConfigError(_cannot_bind(address, error)) from error
    except BaseException:
        close(socket, 0)
        raise
    return socket


def _try_bind(socket: Socket, endpoint: Endpoint, *, last: bool) -> bool:
    """Bind; False if the address is in use and this was not the `last` attempt. Raises ZMQError."""
    try:
        socket.bind(endpoint.address)
    except zmq.ZMQError as error:
        if last or error.errno != zmq.EADDRINUSE:
            raise
        return False
    return True


def _connect(socket: Socket, address: str, dial: Dial) -> Socket:
    try:
        _keep_alive(socket)
        if dial.curve is not None:
            socket.setsockopt_string(zmq.CURVE_SERVERKEY, dial.curve.server)
            socket.setsockopt_string(zmq.CURVE_PUBLICKEY, dial.curve.public)
            socket.setsockopt_string(zmq.CURVE_SECRETKEY, dial.curve.secret)
        if dial.heartbeat:
            socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_IVL_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
        endpoint = parse_address(address)
        _set_family(socket, endpoint)
        socket.connect(endpoint.address)
    except zmq.ZMQError as error:
        close(socket, 0)
        raise ConfigError(f"cannot connect to {address}: {error.strerror}") from error
    except BaseException:
        close(socket, 0)
        raise
    return socket


def _keep_alive(socket: Socket) -> None:
    """Let the kernel find out that a machine has vanished. (Not TCP_USER_TIMEOUT: it would cut off slow readers.)"""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)


def _set_family(socket: Socket, endpoint: Endpoint) -> None:
    if endpoint.is_ipv6:
        socket.setsockopt(zmq.IPV6, 1)


def _cannot_bind(address: str, error: zmq.ZMQError) -> str:
    hint = {
        zmq.EADDRINUSE: "another process listens there; choose another port, or 0 for any free one",
        zmq.EADDRNOTAVAIL: "that address is not one of this machine's",
        errno.ENODEV: "that address is not one of this machine's",
        errno.EACCES: "permission denied",
    }.get(error.errno or 0, error.strerror or str(error))
    return f"cannot listen on {address}: {hint}"
