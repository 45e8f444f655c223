"""Requests and control messages <-> frames `[type, payload, aux...]` (protocol sections 6 to 9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire.arrays import Incoming, Outgoing, TensorSource
from muro.wire.codec.blame import UNREADABLE, UNWRITABLE, blame, spell
from muro.wire.codec.headers import array_length, check_aux, payload_alone, request_heading
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.frames import Frame, RequestType
from muro.wire.ops import OPS
from muro.wire.releases import NEWEST, Layout, newest_lora
from muro.wire.request import EngineCoreRequest, LoRARequest

Request = EngineCoreRequest | AbortRequest | UtilityRequest | StartDPWave
"""What a front-end says to an engine."""

NOBODY: Final = -1
"""Stands for a client index that cannot be read."""

MIN_ADD_LENGTH: Final = 20
"""Positions of a request that every release has."""

_LORA: Final = EngineCoreRequest.__struct_fields__.index("lora_request")

T = TypeVar("T")


class RequestEncoder:
    """Front-end's side: requests and control messages -> frames `[type, payload, aux...]` for an engine.

    `layout` is the engine's.
    """

    def __init__(self, layout: Layout = NEWEST) -> None:
        self._layout = layout
        self._out = Outgoing()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._out.hook)
        self._reader = RequestDecoder()

    def add(self, request: EngineCoreRequest) -> list[Frame]:
        """A request, in as few positions as say all of it.

        Raises LocalProtocolError that names the field if an engine could not read it: the frames are decoded
        again before they are given out, so that a wrong value ends here and not in the engine.
        """
        values = msgspec.structs.astuple(request)
        if isinstance(request.lora_request, LoRARequest):
            values = (*values[:_LORA], self._layout.lora(request.lora_request), *values[_LORA + 1 :])
        size = len(values)
        while size > MIN_ADD_LENGTH and values[size - 1] is None:
            size -= 1
        frames = self._frames(RequestType.ADD, values[:size], request)
        try:
            self._reader.decode(frames)
        except RemoteProtocolError as error:
            raise LocalProtocolError(error.message) from error
        return frames

    def abort(self, request_ids: Iterable[str]) -> list[Frame]:
        """An ABORT of some requests. Raises LocalProtocolError if there is none, or an id is not text."""
        ids = list(request_ids)
        if not ids or not all(isinstance(request_id, str) for request_id in ids):
            raise LocalProtocolError("an ABORT needs at least one request id, and ids are text")
        return self._frames(RequestType.ABORT, ids, ids)

    def call(self, call: UtilityRequest) -> list[Frame]:
        """A utility call. Raises LocalProtocolError that names the argument that cannot travel."""
        if not -(2**63) <= call.call_id < 2**64:
            raise LocalProtocolError(f"call id {call.call_id} has more than 64 bits")
        payload = call
        if any(isinstance(arg, LoRARequest) for arg in call.args):
            args = [self._layout.lora(arg) if isinstance(arg, LoRARequest) else arg for arg in call.args]
            payload = msgspec.structs.replace(call, args=args)
        return self._frames(RequestType.UTILITY, payload, call)

    def start_wave(self, wave: StartDPWave) -> list[Frame]:
        """The coordinator's word that a wave begins."""
        return self._frames(RequestType.START_DP_WAVE, wave, wave)

    def _frames(self, kind: bytes, payload: object, original: object) -> list[Frame]:
        self._out.reset()
        try:
            return [kind, self._encoder.encode(payload), *self._out.frames]
        except UNWRITABLE as error:
            raise LocalProtocolError(blame(original, error)) from error
        finally:
            self._out.reset()


class RequestDecoder:
    """Engine's side: frames `[type, payload, aux...]` -> what a front-end wants."""

    def __init__(self, source: TensorSource | None = None) -> None:
        self._in = Incoming(source)
        self._add = self._in.decoder(EngineCoreRequest)
        self._ids = self._in.decoder(list[str])
        self._call = self._in.decoder(UtilityRequest)
        self._wave = self._in.decoder(StartDPWave)
        self._loose = msgspec.msgpack.Decoder(list[msgspec.Raw])
        self._request_id = msgspec.msgpack.Decoder(str)
        self._number = msgspec.msgpack.Decoder(int)

    def decode(self, frames: Sequence[Frame]) -> Request:
        """A message of a front-end. Raises RemoteProtocolError that names the field."""
        if len(frames) < 2:
            raise RemoteProtocolError(f"message of {len(frames)} frames; it must have a type and a payload")
        check_aux(len(frames) - 2)
        kind = frames[0]
        if kind == RequestType.ADD:
            return self._decode_add(frames)
        if kind == RequestType.UTILITY:
            return self._decode_call(frames)
        if kind == RequestType.ABORT:
            return AbortRequest(self._read(self._ids, payload_alone(frames, "ABORT"), "ABORT"))
        if kind == RequestType.START_DP_WAVE:
            return self._read(self._wave, payload_alone(frames, "START_DP_WAVE"), "START_DP_WAVE")
        raise RemoteProtocolError(f"message of unknown type {bytes(kind[:8]).hex()!r}")

    def salvage(self, frames: Sequence[Frame]) -> tuple[str, int] | None:
        """Request id and client index (perhaps `NOBODY`) of an ADD that `decode` refused; None if it has no id."""
        items = self._items(frames, RequestType.ADD)
        if not items:
            return None
        try:
            request_id = self._request_id.decode(items[0])
        except UNREADABLE:
            return None
        try:
            return request_id, self._number.decode(items[11]) if len(items) > 11 else 0
        except UNREADABLE:
            return request_id, NOBODY

    def salvage_call(self, frames: Sequence[Frame]) -> tuple[int, int, str] | None:
        """Client index, call id and method of a UTILITY that `decode` refused, or None if they cannot be told."""
        items = self._items(frames, RequestType.UTILITY)
        if len(items) < 3:
            return None
        try:
            client, call_id = (self._number.decode(item) for item in items[:2])
            return client, call_id, self._request_id.decode(items[2])
        except UNREADABLE:
            return None

    def add_length(self, frames: Sequence[Frame]) -> int:
        """How many elements the array of an ADD has: a hint at its sender's release. 0 if it is none."""
        return array_length(frames[1]) if len(frames) > 1 and frames[0] == RequestType.ADD else 0

    def heading(self, frames: Sequence[Frame]) -> tuple[str, int] | None:
        """Id and prompt length that an ADD claims to have, from its first bytes alone; None if it is no ADD."""
        return request_heading(frames[1]) if len(frames) > 1 and frames[0] == RequestType.ADD else None

    def _decode_add(self, frames: Sequence[Frame]) -> EngineCoreRequest:
        self._in.frames = frames[1:]
        try:
            request = self._read_add(frames[1])
            for feature in request.mm_features or ():
                for item in (feature.data or {}).values():
                    item.data = self._in.nested(item.data, only_certain=False)
        except UNREADABLE as error:
            raise RemoteProtocolError(spell(f"request: {error}", EngineCoreRequest)) from error
        except ValueError as error:
            raise RemoteProtocolError(f"request: mm_features: {error}") from error
        finally:
            self._in.frames = ()
        if (request.sampling_params is None) == (request.pooling_params is None):
            raise RemoteProtocolError("request: exactly one of sampling_params and pooling_params must be set")
        if request.prompt_token_ids is None and request.prompt_embeds is None:
            raise RemoteProtocolError("request: one of prompt_token_ids and prompt_embeds must be set")
        return request

    def _read_add(self, payload: Frame) -> EngineCoreRequest:
        """A request from its payload; one whose adapter is in the layout up to 0.31 is rewritten and read again."""
        try:
            return self._add.decode(payload)
        except msgspec.ValidationError as error:
            if f"$[{_LORA}][4]" not in str(error):
                raise
        items: list[Any] = list(self._loose.decode(payload))
        items[_LORA] = newest_lora(msgspec.msgpack.decode(items[_LORA]))
        return self._add.decode(msgspec.msgpack.encode(items))

    def _decode_call(self, frames: Sequence[Frame]) -> UtilityRequest:
        self._in.frames = frames[1:]
        try:
            call = self._call.decode(frames[1])
            call.args = [self._in.nested(arg, only_certain=True) for arg in call.args]
        except (*UNREADABLE, ValueError) as error:
            raise RemoteProtocolError(spell(f"call: {error}", UtilityRequest)) from error
        finally:
            self._in.frames = ()
        op = OPS.get(call.method)
        for position, kind in enumerate(op.args if op is not None else ()):
            if kind is LoRARequest and position < len(call.args) and isinstance(call.args[position], list):
                call.args[position] = newest_lora(call.args[position])
        return call

    def _read(self, decoder: msgspec.msgpack.Decoder[T], payload: Frame, what: str) -> T:
        try:
            return decoder.decode(payload)
        except UNREADABLE as error:
            raise RemoteProtocolError(f"{what}: {error}") from error

    def _items(self, frames: Sequence[Frame], kind: bytes) -> list[msgspec.Raw]:
        if len(frames) < 2 or frames[0] != kind:
            return []
        try:
            return self._loose.decode(frames[1])
        except UNREADABLE:
            return []
