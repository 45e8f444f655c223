"""Outputs <-> frames `[payload, aux...]` (protocol section 10), and what must never be sent (section 18)."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Sequence
from types import GenericAlias
from typing import Any, Final

import msgspec

from muro.errors import LocalProtocolError, RemoteProtocolError, RequestFailedError
from muro.wire.arrays import Incoming, Outgoing
from muro.wire.codec.blame import UNREADABLE, UNWRITABLE, blame, spell
from muro.wire.codec.headers import array_length, check_aux
from muro.wire.failure import error_to_wire
from muro.wire.frames import ENGINE_CORE_DEAD, Frame
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, Logprobs, UtilityOutput
from muro.wire.releases import NEWEST, Layout, layout_of_engine
from muro.wire.releases.layout import STABLE_OUTPUT_FIELDS
from muro.wire.stats import PrefillStats


class Marker(enum.Enum):
    """Messages without content."""

    DEAD = "dead"


DEAD: Final = Marker.DEAD
"""The engine's death notice."""


class OutputEncoder:
    """Engine's side: outputs -> frames `[payload, aux...]` for a front-end that reads `layout`."""

    def __init__(self, layout: Layout = NEWEST) -> None:
        self._layout = layout
        self._native = layout is NEWEST
        self._out = Outgoing()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._out.hook)
        self._plain = EngineCoreOutput("", [])
        self._defaults = msgspec.structs.astuple(self._plain)
        fields = EngineCoreOutput.__struct_fields__
        self._places: Final = tuple(fields.index(name) for name in layout.output_fields)
        self._prefill = fields.index("prefill_stats")

    def encode(self, message: EngineCoreOutputs, buffer: bytearray) -> list[Frame]:
        """The message's frames: `buffer`, into which the payload is written, and views of its large arrays.

        Raises LocalProtocolError for what must not be sent (empty or mixed messages, a success without its
        pair, ranks below 1) and for what cannot be carried, naming the place.
        """
        _check_kind(message)
        out = self._out
        try:
            self._encoder.encode_into(message if self._native else self._envelope(message), buffer)
            if not out.met_tensors:
                return [buffer]
            _check_logprobs(message.outputs)
            return [buffer, *out.frames]
        except UNWRITABLE as error:
            raise LocalProtocolError(blame(message, error)) from error
        finally:
            if out.met_tensors:
                out.reset()

    def _envelope(self, message: EngineCoreOutputs) -> tuple[Any, ...]:
        """The message in the peer's positions."""
        rows: list[tuple[Any, ...]] = []
        plain = self._plain  # a reader of any release takes two elements for an output that has no more
        for output in message.outputs:
            plain.request_id = request_id = output.request_id
            plain.new_token_ids = tokens = output.new_token_ids
            rows.append((request_id, tokens) if output == plain else self._row(output))
        index, _, stats, *rest = msgspec.structs.astuple(message)
        known = None if stats is None else self._layout.keys(stats)
        return (index, rows, known, *rest)[: self._layout.envelope_fields]

    def _row(self, output: EngineCoreOutput) -> tuple[Any, ...]:
        """An output in the peer's positions, cut after the last one that is set."""
        values = list(msgspec.structs.astuple(output))
        if type(values[self._prefill]) is PrefillStats:
            values[self._prefill] = self._layout.keys(values[self._prefill])
        defaults = self._defaults
        size = len(self._places)
        while size > 2 and _is_default(values[self._places[size - 1]], defaults[self._places[size - 1]]):
            size -= 1
        if size > STABLE_OUTPUT_FIELDS:
            size = max(size, self._layout.output_floor)
        return tuple(values[place] for place in self._places[:size])


class OutputDecoder:
    """Front-end's side: frames `[payload, aux...]` of an engine -> outputs.

    `engine` is its layout, or the `vllm_version` of its ready response. That is where it starts: arrays of 13
    elements, and of 14 and more, tell their layout themselves.
    """

    def __init__(self, engine: Layout | str = NEWEST) -> None:
        layout = layout_of_engine(engine) if isinstance(engine, str) else engine
        self._in = Incoming()
        self._newest = self._in.decoder(EngineCoreOutputs)
        self._shifted = self._in.decoder(_shifted_envelope())
        self._lengths = msgspec.msgpack.Decoder(list[msgspec.Raw])
        self._text = msgspec.msgpack.Decoder(str)
        self._is_shifted = layout.minor < 26

    def decode(self, frames: Sequence[Frame]) -> EngineCoreOutputs | Marker:
        """A message of an engine. Raises RemoteProtocolError that names the field.

        Answers of calls that carry type information (pickled class names) come out as failures of the call.
        """
        if len(frames) == 1 and frames[0] == ENGINE_CORE_DEAD:
            return DEAD
        if not frames:
            raise RemoteProtocolError("output message without a frame")
        check_aux(len(frames) - 1)
        self._in.frames = frames
        try:
            message = self._read(frames[0])
            if message.utility_output is not None:
                message.utility_output = self._answer(message.utility_output)
            return message
        except UNREADABLE as error:
            raise RemoteProtocolError(spell(f"output message: {error}", EngineCoreOutputs)) from error
        except ValueError as error:
            raise RemoteProtocolError(f"output message: utility_output: {error}") from error
        finally:
            self._in.frames = ()

    def salvage(self, frames: Sequence[Frame], error: RemoteProtocolError) -> EngineCoreOutputs | None:
        """Of a message that `decode` refused: the ends, by `error`, of all requests that can be identified.

        None if there is none. Nobody who waits for what stood there may wait for ever.
        """
        failure = error_to_wire(RequestFailedError(f"the engine sent what cannot be read: {error.message}"))
        ids: dict[str, None] = {}
        try:
            fields = self._lengths.decode(frames[0])
            rows = self._lengths.decode(fields[1])
        except (IndexError, *UNREADABLE):
            return None
        for row in rows:
            with contextlib.suppress(IndexError, *UNREADABLE):
                ids[self._text.decode(self._lengths.decode(row)[0])] = None
        ends = [EngineCoreOutput(i, [], finish_reason=FinishReason.ERROR, error=failure) for i in ids]
        return EngineCoreOutputs(outputs=ends) if ends else None

    def _read(self, payload: Frame) -> EngineCoreOutputs:
        """Decode as the last message was. The other layout cannot be read so: its position 12 is of another kind."""
        try:
            return self._decode(payload)
        except msgspec.ValidationError:
            if not self._other_layout(payload):
                raise
        self._is_shifted = not self._is_shifted
        return self._decode(payload)

    def _decode(self, payload: Frame) -> EngineCoreOutputs:
        if not self._is_shifted:
            return self._newest.decode(payload)
        message = self._shifted.decode(payload)
        values: list[Any] = [getattr(message, name) for name in EngineCoreOutputs.__struct_fields__]
        values[1] = []
        for row in map(msgspec.structs.astuple, message.outputs):
            fields = (*row[:STABLE_OUTPUT_FIELDS], None, *row[STABLE_OUTPUT_FIELDS:])
            values[1].append(EngineCoreOutput(*fields))
        return EngineCoreOutputs(*values)

    def _other_layout(self, payload: Frame) -> bool:
        """Whether the lengths of a message's outputs say that it is in the layout that was not tried."""
        fields = self._lengths.decode(payload)
        rows = self._lengths.decode(fields[1]) if len(fields) > 1 else []
        lengths = {array_length(row) for row in rows}
        return any(length >= 14 for length in lengths) if self._is_shifted else 13 in lengths

    def _answer(self, answer: UtilityOutput) -> UtilityOutput:
        if answer.failure_message is not None:
            return UtilityOutput(answer.call_id, answer.failure_message)
        if not isinstance(answer.result, list) or len(answer.result) != 2:
            return UtilityOutput(answer.call_id, "the engine answered without the pair of type and value")
        kind, value = answer.result
        if kind is not None:
            return UtilityOutput(
                answer.call_id,
                "the engine's answer carries type information, which is refused; "
                "start the engine without VLLM_ALLOW_INSECURE_SERIALIZATION",
            )
        return UtilityOutput(answer.call_id, None, [None, self._in.nested(value, only_certain=True)])


def _shifted_envelope() -> Any:
    """The type of a message of release 0.25, whose outputs lack position 9 and end at 13."""
    output = _struct("Output25", EngineCoreOutput, layout_of_engine("0.25").output_fields, {})
    return _struct(
        "Outputs25", EngineCoreOutputs, EngineCoreOutputs.__struct_fields__, {"outputs": GenericAlias(list, (output,))}
    )


def _struct(name: str, like: type[msgspec.Struct], fields: Sequence[str], types: dict[str, Any]) -> Any:
    """An array struct with some fields of another one, in this order."""
    known = {field.name: field for field in msgspec.structs.fields(like)}
    rows: list[Any] = []
    for field in map(known.__getitem__, fields):
        kind = types.get(field.name, field.type)
        rows.append((field.name, kind) if field.required else (field.name, kind, _default_of(field)))
    return msgspec.defstruct(name, rows, array_like=True, gc=False)


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


def _check_kind(message: EngineCoreOutputs) -> None:
    """Raises LocalProtocolError unless it is one batch, or one answer, or one wave notice."""
    answer = message.utility_output
    holds_batch = bool(message.outputs or message.scheduler_stats is not None or message.finished_requests)
    if holds_batch and answer is None and message.wave_complete is None and message.start_wave is None:
        return  # by far the most frequent kind
    kinds = (
        holds_batch,
        answer is not None,
        message.wave_complete is not None,
        message.start_wave is not None,
    )
    if sum(kinds) != 1:
        raise LocalProtocolError(
            "a message of an engine must hold one of: outputs, stats and finished ids; a call's answer; a wave notice"
            f" (this one holds {sum(kinds)} of them)"
        )
    if answer is None:
        return
    pair = answer.result
    if answer.failure_message is None and not (isinstance(pair, list | tuple) and len(pair) == 2 and pair[0] is None):
        raise LocalProtocolError("the answer of a successful call must be the pair [None, value]")
    if answer.failure_message is not None and pair is not None:
        raise LocalProtocolError("the answer of a failed call must have no result")


def _check_logprobs(outputs: Sequence[EngineCoreOutput]) -> None:
    """Raises LocalProtocolError for what front-ends refuse: ranks below 1, counts in per-request outputs."""
    for position, output in enumerate(outputs):
        for logprobs in (output.new_logprobs, output.new_prompt_logprobs_tensors):
            if logprobs is not None and (fault := _fault_of_logprobs(logprobs)):
                raise LocalProtocolError(f"logprobs of outputs[{position}]: {fault}")


def _fault_of_logprobs(logprobs: Logprobs) -> str | None:
    if logprobs.cu is not None:
        return "those of one request carry no cumulative counts (`cu`)"
    data = memoryview(logprobs.ranks.data).cast("B")
    if logprobs.ranks.dtype in ("<i4", "int32"):
        ranks = data.cast("i")
    elif logprobs.ranks.dtype in ("<i8", "int64"):
        ranks = data.cast("q")
    else:
        return f"ranks are {logprobs.ranks.dtype}; they must be int32 or int64"
    return "ranks count from 1" if any(rank < 1 for rank in ranks) else None


def _is_default(value: object, default: object) -> bool:
    return value is default or (type(value) is int and value == default)
