"""What a server and its parent say to each other, over a line that stays on this machine. Pure.

Server: Joining, then Serving; Counted, when asked; CountAll for the numbers of all. Parent: Begin once the engines
serve, then each event of the engines, Standing whenever something has moved; Count; Total as the answer to CountAll.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muro.crew.interface import ServerStatus
from muro.errors import CrashLoopError, EngineDeadError, RemoteProtocolError
from muro.ids import ClientIndex, EngineRank, Generation
from muro.launch.events import EngineDied, EngineGivenUp, EngineReplaced, EngineStarted
from muro.launch.rank import RankStatus
from muro.observe.metrics import Numbers
from muro.transport.sockets import Frame
from muro.wire.handshake import ReadyResponse

MAX_WORD_BYTES: Final = 16 << 20
"""No honest word comes near: the state of an engine has some 500 bytes."""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is started with: which one it is, and where the others are."""

    index: ClientIndex
    generation: int
    servers: int
    """How many there are."""
    directory: str
    """Where the doors are; see `clients.doors.Shared`."""
    line: str
    """Address of the parent."""


class Joining(msgspec.Struct, frozen=True, tag=True):
    """A server's first word: its doors are open."""

    index: int
    generation: int


class Serving(msgspec.Struct, frozen=True, tag=True):
    """It answers HTTP."""

    names: list[str]
    """What the model is called."""
    chat: bool
    """Whether it has a chat template."""


class CountAll(msgspec.Struct, frozen=True, tag=True):
    """A server wants the numbers of all, its own included."""

    call: int


class Counted(msgspec.Struct, frozen=True, tag=True):
    """A server's numbers, now."""

    numbers: Numbers


class Count(msgspec.Struct, frozen=True, tag=True):
    """The parent wants to know a server's numbers."""


class Total(msgspec.Struct, frozen=True, tag=True):
    """The numbers of all servers, and what remains of those that have gone."""

    call: int
    numbers: Numbers


class EngineWord(msgspec.Struct, frozen=True):
    """The engine of one rank: ready, or what it has died of."""

    rank: EngineRank
    generation: Generation
    ready: ReadyResponse | None
    error: EngineDeadError | None = None
    joining: Generation | None = None
    """The generation that is being started."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """All engines have come; what was before is nobody's any more."""

    engines: list[EngineWord]


class Standing(msgspec.Struct, frozen=True, tag=True):
    """How the processes of engines and servers are."""

    engines: dict[EngineRank, RankStatus]
    servers: list[ServerStatus]
    at: float
    """When that was, on the monotonic clock."""


FromServer = Joining | Serving | CountAll | Counted
EngineEvent = EngineDied | EngineStarted | EngineReplaced | EngineGivenUp
"""What servers are told of engines; how far a start is, they read from `Standing`."""
ToServer = Begin | Standing | Count | Total | EngineEvent


def encode(word: FromServer | ToServer) -> bytes:
    """A word as it travels."""
    return _encoder.encode(word)


def decode_from_server(frame: Frame) -> FromServer:
    """A word to the parent. Raises RemoteProtocolError."""
    word: FromServer = _decode(_from_server, frame)
    return word


def decode_to_server(frame: Frame) -> ToServer:
    """A word to a server. Raises RemoteProtocolError."""
    word: ToServer = _decode(_to_server, frame)
    return word


_CRASH_LOOP: Final = "crash_loop"
_FIELDS: Final = (
    "message", "rank", "generation", "phase", "pid", "exit_status", "log_tail", "restarting", "retry_after", "stuck",
)  # fmt: skip


def _to_map(value: Any) -> dict[str, Any]:
    if not isinstance(value, EngineDeadError):
        raise NotImplementedError(f"{type(value).__name__} does not travel")
    return {name: getattr(value, name) for name in _FIELDS} | {_CRASH_LOOP: isinstance(value, CrashLoopError)}


def _from_map(kind: type, value: Any) -> EngineDeadError:
    if kind is not EngineDeadError:
        raise NotImplementedError(f"{kind.__name__} does not travel")
    fields = dict(value)
    made = CrashLoopError if fields.pop(_CRASH_LOOP) else EngineDeadError
    return made(**fields)


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: Frame) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, TypeError, KeyError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a word between server and parent cannot be read: {error}") from error


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_map)
_from_server = msgspec.msgpack.Decoder[Any](FromServer, dec_hook=_from_map)
_to_server = msgspec.msgpack.Decoder[Any](ToServer, dec_hook=_from_map)
