"""What of a message may be kept when prompts may not: a copy that reads like it and says nothing of what was asked.

Works by lists of what may stay: ids of requests and calls, counts, times, settings that are numbers, finish reasons.
Token ids become as many zeros; texts, tensors, maps of a request and whatever is not known here are left out. A frame
that is not of the protocol's form is not kept at all. The copies are in the layout of the originals.

An encoder keeps state while it works, and calls are remembered until their answers come: belongs to one thread.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from muro.probe.recording import Direction, Kept, KeptFrame, Role, kept_frame, payload_place
from muro.wire.frames import COORDINATOR_READY, ENGINE_CORE_DEAD, SUBSCRIBE, UNSUBSCRIBE, Frame, RequestType
from muro.wire.handshake import Addresses, Features, Init, KVEventsConfig, Ready, ReadyResponse
from muro.wire.ops import COLLECTIVE_RPC, HANDLE_FAULT_TOLERANCE, OPS
from muro.wire.request import EngineCoreRequest, SamplingParams

HASH_BYTES: Final = 16
REMEMBERED_CALLS: Final = 10_000

_ID_BYTES: Final = 1024
"""A longer id is no id."""

_SAMPLING: Final = frozenset(
    """
    n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed ignore_eos max_tokens
    min_tokens logprobs prompt_logprobs flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens
    include_stop_str_in_output output_kind skip_clone output_text_buffer_length routed_experts_prompt_start
    skip_reading_prefix_cache thinking_token_budget stream_interval watermarking prompt_logprob_start
    _watermarking_skipped
    """.split()  # noqa: SIM905 - a list of so many words would be a page
)
_SAMPLING_KEYS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(SamplingParams))
_HANDSHAKE: Final = frozenset(
    field.encode_name
    for struct in (Init, Addresses, Features, Ready, ReadyResponse, KVEventsConfig)
    for field in msgspec.structs.fields(struct)
) | {"data_parallel_master_ip", "data_parallel_master_port", "_data_parallel_master_port_list", "data_parallel_size",
     "_coord_store_port", "elastic_ep_max_dp_size", "num_redundant_experts"}  # fmt: skip
_PRIVATE_CALLS: Final = {COLLECTIVE_RPC.name, HANDLE_FAULT_TOLERANCE.name}
"""Known operations whose arguments and answers may hold anything."""
_FAILURE: Final = re.compile(r"Call to \w{1,64} method failed: ")
_HARMLESS: Final = {"Server shutting down", "repetition_detected", "pooling_params", "sampling_params"}

_PLAIN: Final = (ENGINE_CORE_DEAD, COORDINATOR_READY, SUBSCRIBE, UNSUBSCRIBE)
"""What is not msgpack and says nothing of anybody."""
_ADD: Final = EngineCoreRequest.__struct_fields__


class _NotTheProtocol(Exception):
    """A frame is not of the form that is expected in its place."""


class Withholder:
    """Makes copies of messages without prompts, and says what it left out."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._decoder = msgspec.msgpack.Decoder()
        self._encoder = msgspec.msgpack.Encoder()
        self._calls: dict[tuple[bytes, int], str] = {}
        self._missing: dict[str, None] = {}

    def keep(
        self, role: Role, direction: Direction, peer: bytes, frames: Sequence[Frame]
    ) -> tuple[list[KeptFrame], list[str]]:
        """The frames to be recorded, and the names of the fields that they lack."""
        self._missing = {}
        to_engine = direction is Direction.TO_ENGINE
        place = payload_place(role, direction, len(frames))
        kept: list[KeptFrame] = []
        for index, frame in enumerate(frames):
            if index < place and len(frame) == 1:
                kept.append(KeptFrame(bytes(frame), 1))
            elif index == place:
                kind = bytes(frames[0]) if place and len(frames[0]) == 1 else b""
                kept.append(self._payload(role, to_engine, peer, kind, frame))
            else:
                kept.append(hashed(frame))
        if any(frame.kept is Kept.HASHED for frame in kept[place + 1 :]):
            self._missing["tensors"] = None
        return kept, list(self._missing)

    def _payload(self, role: Role, to_engine: bool, peer: bytes, kind: bytes, frame: Frame) -> KeptFrame:
        plain = bytes(frame)
        if plain in _PLAIN and not kind:
            return KeptFrame(plain, len(plain))
        try:
            rule = self._rule(role, to_engine, peer, kind)
            value = self._decoder.decode(plain)
            copy = rule(value)
            if not self._missing:
                return kept_frame(plain, len(plain), Kept.WHOLE, self._max)
            return kept_frame(self._encoder.encode(copy), len(plain), Kept.WITHHELD, self._max)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, _NotTheProtocol):
            self._missing = {"message": None}
            return hashed(frame)

    def _rule(self, role: Role, to_engine: bool, peer: bytes, kind: bytes) -> Callable[[Any], Any]:
        if role is Role.HANDSHAKE or (role is Role.INPUT and not to_engine):
            return self._settings
        if role in (Role.OUTPUT, Role.COORDINATOR_OUTPUT):
            return lambda value: self._outputs(peer, value)
        if kind == RequestType.ADD:
            return self._add
        if kind == RequestType.ABORT:
            return self._abort
        if kind == RequestType.UTILITY:
            return lambda value: self._call(peer, value)
        if kind == RequestType.START_DP_WAVE or role is Role.COORDINATOR_INPUT:
            return self._wave
        raise _NotTheProtocol

    def _settings(self, value: Any) -> Any:
        """Handshake messages and ready responses: maps with known keys."""
        if not isinstance(value, dict):
            raise _NotTheProtocol
        copy: dict[str, Any] = {}
        for key, item in value.items():
            if key not in _HANDSHAKE:
                self._lack("unknown keys")
            else:
                copy[key] = self._settings(item) if isinstance(item, dict) else item
        return copy

    def _add(self, value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) < 2:
            raise _NotTheProtocol
        copy = []
        for position, item in enumerate(value):
            name = _ADD[position] if position < len(_ADD) else f"position {position}"
            if name == "sampling_params" and isinstance(item, dict):
                copy.append(self._sampling(item))
                continue
            kept = _ADD_RULES.get(name, _number)(item)
            self._compare(name, item, kept)
            copy.append(kept)
        return copy

    def _sampling(self, given: dict[Any, Any]) -> dict[str, Any]:
        """Settings that are numbers, and those that are empty."""
        kept: dict[str, Any] = {}
        for key, item in given.items():
            if key not in _SAMPLING_KEYS:
                self._lack("sampling_params: unknown keys")
            elif item is None or item == [] or (key in _SAMPLING and _number(item) is not None):
                kept[key] = item
            else:
                self._lack(f"sampling_params.{key}")
        return kept

    def _abort(self, value: Any) -> Any:
        if not isinstance(value, list) or any(_id(item) is None for item in value):
            raise _NotTheProtocol
        return value

    def _wave(self, value: Any) -> Any:
        if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
            raise _NotTheProtocol
        if not (value[1] is None or type(value[1]) is int or (isinstance(value[1], bytes) and len(value[1]) == 2)):
            raise _NotTheProtocol
        return value

    def _call(self, peer: bytes, value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) != 4 or not isinstance(value[3], list) or _id(value[2]) is None:
            raise _NotTheProtocol
        client, call_id, method, args = value
        if type(client) is not int or type(call_id) is not int:
            raise _NotTheProtocol
        if len(self._calls) >= REMEMBERED_CALLS:
            self._calls.pop(next(iter(self._calls)))
        self._calls[peer, call_id] = method
        if method in OPS and method not in _PRIVATE_CALLS:
            return value
        if args:
            self._lack("args")
        return [client, call_id, method, [None] * len(args)]

    def _outputs(self, peer: bytes, value: Any) -> list[Any]:
        if not isinstance(value, list) or (len(value) > 1 and not isinstance(value[1], list)):
            raise _NotTheProtocol
        copy: list[Any] = [_number(item) for item in value]
        if len(value) > 1:
            copy[1] = [self._output(row) for row in value[1]]
        if len(value) > 2:
            copy[2] = _figures(value[2])
        if len(value) > 4 and value[4] is not None:
            copy[4] = self._answer(peer, value[4])
        if len(value) > 5 and value[5] is not None:
            copy[5] = self._abort(value[5])
        if len(value) > 8:
            copy[8] = _id(value[8])
        for position in (2, *range(8, len(value))):
            self._compare(f"position {position}", value[position : position + 1], copy[position : position + 1])
        return copy

    def _output(self, row: Any) -> list[Any]:
        if not isinstance(row, list) or len(row) < 2 or _id(row[0]) is None or not isinstance(row[1], list):
            raise _NotTheProtocol
        copy: list[Any] = [row[0], [0] * len(row[1]), None, None, None]
        self._compare("new_token_ids", row[1], copy[1])
        for position, name in ((2, "logprobs"), (3, "prompt_logprobs"), (4, "pooling_output")):
            self._compare(name, row[position] if len(row) > position else None, None)
        for position, item in enumerate(row[5:], 5):
            copy.append(self._late_field(position, item))
        return copy[: len(row)]

    def _late_field(self, position: int, item: Any) -> Any:
        kept: Any
        if position == 6:
            kept = item if item in (None, "repetition_detected") else None
        elif position == 7:
            kept = _figures(item)
        elif isinstance(item, dict) and isinstance(item.get("code"), str):
            kept = {"code": _id(item["code"]) or "", "message": "", "retryable": item.get("retryable") is True}
        else:
            kept = _figures(item) if isinstance(item, dict) else _number(item)
        if kept != item:
            self._lack("stop_reason" if position == 6 else f"outputs, position {position}")
        return kept

    def _answer(self, peer: bytes, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value or type(value[0]) is not int:
            raise _NotTheProtocol
        method = self._calls.pop((peer, value[0]), "")
        if method in OPS and method not in _PRIVATE_CALLS:
            return value
        copy = [value[0], *map(_said, value[1:2]), *map(_figures, value[2:3])]
        self._compare("answer", value, copy)
        return copy

    def _compare(self, name: str, given: Any, kept: Any) -> None:
        if given != kept:
            self._lack(name)

    def _lack(self, name: str) -> None:
        self._missing[name] = None


def whole(frames: Sequence[Frame], max_frame_bytes: int) -> list[KeptFrame]:
    """The frames to be recorded when prompts may be kept."""
    return [
        KeptFrame(bytes(frame[:max_frame_bytes]), len(frame), Kept.WHOLE if len(frame) <= max_frame_bytes else Kept.CUT)
        for frame in frames
    ]


def hashed(frame: Frame) -> KeptFrame:
    """A frame of which only size and hash are kept."""
    return KeptFrame(hashlib.blake2b(frame, digest_size=HASH_BYTES).digest(), len(frame), Kept.HASHED)


def _number(value: Any) -> Any:
    return value if value is None or type(value) in (int, float, bool) else None


def _id(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= _ID_BYTES else None


def _figures(value: Any) -> Any:
    """What of a value are numbers; of a map, those under names."""
    if isinstance(value, dict):
        kept = {key: _figures(item) for key, item in value.items() if isinstance(key, str)}
        return {key: item for key, item in kept.items() if item is not None or value[key] is None}
    if isinstance(value, list):
        return [_figures(item) for item in value]
    return _number(value)


def _said(value: Any) -> str | None:
    """Of the reason for which a call failed: which one it was."""
    if value is None or value in _HARMLESS:
        return value if value is None else str(value)
    found = _FAILURE.match(value) if isinstance(value, str) else None
    return f"{found[0] if found else ''}(withheld)"


def _required_id(value: Any) -> str:
    if (kept := _id(value)) is None:
        raise _NotTheProtocol
    return kept


def _zeros(value: Any) -> list[int] | None:
    return [0] * len(value) if isinstance(value, list) else None


def _flags(value: Any) -> list[bool] | None:
    return [item is True for item in value] if isinstance(value, list) else None


def _features(value: Any) -> list[Any] | None:
    """Multimodal features: how many of what, and where."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return None
    kept = []
    for item in value:
        where = item.get("mm_position")
        place = where if isinstance(where, dict) else {}
        position = {name: _number(place.get(name)) or 0 for name in ("offset", "length")}
        modality = _id(item.get("modality")) or ""
        kept.append({"data": None, "modality": modality, "identifier": "", "mm_position": position, "mm_hash": None})
    return kept


def _pooling(value: Any) -> list[Any] | None:
    """Pooling parameters: flags, numbers and the task."""
    if not isinstance(value, list):
        return None
    return [_id(item) if position == 4 else _number(item) for position, item in enumerate(value)]


def _embeds(value: Any) -> Any:
    """A tensor of the same shape, of zeros; an auxiliary frame is not kept in any case."""
    if not isinstance(value, list) or len(value) != 3 or _id(value[0]) is None or not isinstance(value[1], list):
        return None
    place = value[2]
    if isinstance(place, msgspec.msgpack.Ext):
        place = msgspec.msgpack.Ext(place.code, bytes(memoryview(place.data).nbytes))
    elif type(place) is not int:
        return None
    return [value[0], [_number(extent) for extent in value[1]], place]


def _lora(value: Any) -> Any:
    """An adapter is the operator's, and no prompt."""
    if not isinstance(value, list):
        return None
    return [item if isinstance(item, str) else _number(item) for item in value]


def _map(value: Any) -> dict[str, Any] | None:
    return {} if isinstance(value, dict) else None


_ADD_RULES: Final[dict[str, Callable[[Any], Any]]] = {
    "request_id": _required_id,
    "prompt_token_ids": _zeros,
    "mm_features": _features,
    "sampling_params": lambda value: None,
    "pooling_params": _pooling,
    "lora_request": _lora,
    "cache_salt": lambda value: None if value is None else "",
    "prompt_embeds": _embeds,
    "prompt_is_token_ids": _flags,
    "trace_headers": _map,
    "external_req_id": _id,
    "reasoning_parser_kwargs": _map,
    "session_id": _id,
    "kv_hints": lambda value: None,
}
"""What is kept of each field of a request; of others, numbers. Sampling parameters are looked at by key, if a map."""
