"""What a recorded message says: its kind, the ids in it, and its fields, whatever release it is of.

A `Reader` remembers which release each engine said it is of, and reads its outputs accordingly. What cannot be read
comes out as such, with the reason. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from muro.errors import RemoteProtocolError
from muro.probe.recording import Direction, Kept, Record, Role
from muro.wire.codec import Marker, OutputDecoder, RequestDecoder
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.frames import COORDINATOR_READY, ENGINE_CORE_DEAD, SUBSCRIBE, UNSUBSCRIBE
from muro.wire.handshake import Hello, Init, Ready, ReadyResponse, decode_init, decode_ready_response
from muro.wire.output import EngineCoreOutputs
from muro.wire.releases import NEWEST, Layout
from muro.wire.request import EngineCoreRequest


class Kind(enum.StrEnum):
    """What a message is."""

    HELLO = "hello"
    INIT = "init"
    READY = "ready"
    RESPONSE = "response"
    """The ready response."""
    ADD = "add"
    ABORT = "abort"
    WAVE = "wave"
    """START_DP_WAVE, or an engine's notice of a wave."""
    CALL = "call"
    OUTPUTS = "outputs"
    STATS = "stats"
    """Outputs without news of a request."""
    ANSWER = "answer"
    DEAD = "dead"
    SUBSCRIBE = "subscribe"
    GATE = "gate"
    """The coordinator's READY."""
    EVENT = "event"
    UNKNOWN = "unknown"


Value = (
    Hello | Init | Ready | ReadyResponse | EngineCoreRequest | AbortRequest | StartDPWave | UtilityRequest
    | EngineCoreOutputs | None
)  # fmt: skip


class Message(msgspec.Struct, frozen=True):
    """A record that has been read. `fault` says why there is no `value`, if there should be one."""

    record: Record
    kind: Kind
    value: Value = None
    ids: frozenset[str] = frozenset()
    fault: str = ""
    layout: int = 0
    """Elements of an ADD's array: a hint at the release of its front-end."""


_Read = tuple[Kind, Value]

_PLAIN: Final[dict[tuple[Role, bytes], Kind]] = {
    (Role.OUTPUT, ENGINE_CORE_DEAD): Kind.DEAD,
    (Role.COORDINATOR_INPUT, COORDINATOR_READY): Kind.GATE,
    (Role.COORDINATOR_INPUT, SUBSCRIBE): Kind.SUBSCRIBE,
    (Role.COORDINATOR_INPUT, UNSUBSCRIBE): Kind.SUBSCRIBE,
}


class Reader:
    """Reads records in their order.

    `layout`: that of all engines' outputs; None: as each says of itself.
    """

    def __init__(self, layout: Layout | None = None) -> None:
        self._layout = layout
        self._requests = RequestDecoder()
        self._outputs: dict[int, OutputDecoder] = {}
        self._words = msgspec.msgpack.Decoder(dict[str, Any])

    def read(self, record: Record) -> Message:
        """What it says; never raises."""
        if record.direction is Direction.EVENT:
            return Message(record, Kind.EVENT)
        frames = record.payloads
        if frames is None:
            return Message(record, self._guess(record), fault=_missing(record))
        try:
            kind, value = self._read(record, frames)
        except RemoteProtocolError as error:
            return Message(record, self._guess(record), fault=error.message)
        except msgspec.DecodeError as error:
            return Message(record, Kind.UNKNOWN, fault=str(error))
        length = self._requests.add_length(frames) if kind is Kind.ADD else 0
        return Message(record, kind, value, _ids(value), layout=length)

    def _read(self, record: Record, frames: list[bytes]) -> _Read:
        to_engine = record.direction is Direction.TO_ENGINE
        if len(frames) == 1 and (kind := _PLAIN.get((record.role, frames[0]))) is not None:
            return kind, None
        if record.role is Role.HANDSHAKE:
            return self._handshake(frames, to_engine)
        if record.role is Role.INPUT and not to_engine:
            return self._response(record, frames)
        if to_engine:
            request = self._requests.decode(frames)
            return _REQUESTS[type(request)], request
        return self._output(record, frames)

    def _handshake(self, frames: Sequence[bytes], to_engine: bool) -> _Read:
        if len(frames) != 1:
            raise RemoteProtocolError(f"handshake message of {len(frames)} frames; it has one")
        if to_engine:
            return Kind.INIT, decode_init(frames[0])
        try:
            status = self._words.decode(frames[0]).get("status")
            if status == "READY":
                return Kind.READY, msgspec.msgpack.decode(frames[0], type=Ready)
            return Kind.HELLO, msgspec.msgpack.decode(frames[0], type=Hello)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"no word of the handshake: {error}") from error

    def _response(self, record: Record, frames: Sequence[bytes]) -> _Read:
        if len(frames) != 1:
            raise RemoteProtocolError(f"ready response of {len(frames)} frames; it has one")
        response = decode_ready_response(frames[0])
        self._outputs.setdefault(record.link, OutputDecoder(self._layout or response.vllm_version))
        return Kind.RESPONSE, response

    def _output(self, record: Record, frames: Sequence[bytes]) -> _Read:
        decoder = self._outputs.get(record.link)
        if decoder is None:
            decoder = self._outputs[record.link] = OutputDecoder(self._layout or NEWEST)
        message = decoder.decode(frames)
        if isinstance(message, Marker):
            return Kind.DEAD, None
        if message.utility_output is not None:
            return Kind.ANSWER, message
        if message.wave_complete is not None or message.start_wave is not None:
            return Kind.WAVE, message
        return (Kind.OUTPUTS if message.outputs or message.finished_requests else Kind.STATS), message

    def _guess(self, record: Record) -> Kind:
        """The kind of a message that cannot be read, from its type byte."""
        if record.role is Role.INPUT and record.direction is Direction.TO_ENGINE and record.frames:
            first = record.frames[0]
            return _BY_BYTE.get(first.data, Kind.UNKNOWN) if first.kept is Kept.WHOLE else Kind.UNKNOWN
        return Kind.UNKNOWN


_REQUESTS: Final[dict[type[Any], Kind]] = {
    EngineCoreRequest: Kind.ADD,
    AbortRequest: Kind.ABORT,
    StartDPWave: Kind.WAVE,
    UtilityRequest: Kind.CALL,
}
_BY_BYTE: Final = {b"\x00": Kind.ADD, b"\x01": Kind.ABORT, b"\x02": Kind.WAVE, b"\x03": Kind.CALL}


def _ids(value: Value) -> frozenset[str]:
    """The ids of requests in a message, those that their users know included."""
    match value:
        case EngineCoreRequest():
            return frozenset(filter(None, (value.request_id, value.external_req_id)))
        case AbortRequest():
            return frozenset(value.request_ids)
        case EngineCoreOutputs():
            return frozenset([output.request_id for output in value.outputs] + (value.finished_requests or []))
    return frozenset()


def _missing(record: Record) -> str:
    if any(frame.kept is Kept.CUT for frame in record.frames):
        return "too large to be recorded whole"
    return "not of the protocol's form, so without --with-prompts only its hash was recorded"
