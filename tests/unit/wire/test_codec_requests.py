import threading
from typing import Any

import msgspec
import pytest

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire.arrays import Tensor
from muro.wire.codec import RequestDecoder, RequestEncoder
from muro.wire.codec.headers import MAX_AUX_FRAMES
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.releases import LAYOUTS, NEWEST
from muro.wire.request import (
    EngineCoreRequest,
    LoRARequest,
    MultiModalFeature,
    MultiModalItem,
    PlaceholderRange,
    PoolingParams,
    SamplingParams,
)

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode
Ext = msgspec.msgpack.Ext

ARRAY = ["a", [1], None, {}, None, 1.5, None, None, None]
"""The shortest ADD that 0.25.1 takes."""


def request(**fields: Any) -> EngineCoreRequest:
    given = {"request_id": "a", "prompt_token_ids": [1, 2], "sampling_params": SamplingParams(), "arrival_time": 1.5}
    return EngineCoreRequest(**{**given, **fields})


def add(**changes: Any) -> list[bytes]:
    """An ADD with some of its positions changed, on the raw wire."""
    items = list(msgspec.structs.astuple(request()))
    for name, value in changes.items():
        items[EngineCoreRequest.__struct_fields__.index(name)] = value
    return [b"\x00", pack(items)]


def decode(frames: list[Any]) -> Any:
    return RequestDecoder().decode(frames)


def test_requests_survive_the_crossing() -> None:
    features = [
        MultiModalFeature(
            {"pixels": MultiModalItem([Tensor("uint8", [400], bytes(400)), 3], ["batched", {"keep_on_cpu": True}])},
            "image", "id", PlaceholderRange(0, 2, Tensor("bool", [2], b"\x01\x00")), "hash",
        ),
        MultiModalFeature(None, "image", "id2", PlaceholderRange(2, 2)),
    ]  # fmt: skip
    for original in (
        request(),
        request(mm_features=features, lora_request=LoRARequest("l", 1, "/p", "base", True, False)),
        request(sampling_params=None, pooling_params=PoolingParams(task="embed")),
        request(prompt_token_ids=None, prompt_embeds=Tensor("float32", [2, 40], bytes(320)), kv_hints={"x": []}),
        request(sampling_params=SamplingParams(logit_bias={1: 2.5}, seed=-(2**63), stop_token_ids=[2**63 - 1])),
    ):
        for layout in LAYOUTS.values():
            assert decode(RequestEncoder(layout).add(original)) == original


def test_requests_are_as_short_as_every_release_takes_them() -> None:
    encoder = RequestEncoder()
    assert len(unpack(encoder.add(request())[1])) == 20
    assert len(unpack(encoder.add(request(session_id="s"))[1])) == 21
    assert len(unpack(encoder.add(request(kv_hints={}))[1])) == 22


@pytest.mark.parametrize("minor", range(25, 34))
@pytest.mark.parametrize(
    "lora", [LoRARequest("l", 1, "/p"), LoRARequest("l", 1, "/p", "b"), LoRARequest("l", 1, "/p", None, True, True)]
)
def test_adapters_travel_in_the_layout_of_their_reader(minor: int, lora: LoRARequest) -> None:
    encoder = RequestEncoder(LAYOUTS[f"0.{minor}"])
    sent = unpack(encoder.add(request(lora_request=lora))[1])[6]
    flags = lora.load_inplace or lora.is_3d_lora_weight
    assert len(sent) == ((7 if minor < 32 else 6) if flags else 3 + (lora.base_model_name is not None))
    frames = encoder.call(UtilityRequest(0, 1, "add_lora", [lora]))
    assert unpack(frames[1])[3] == [sent]
    call = decode(frames)
    assert msgspec.convert(call.args[0], LoRARequest) == lora


@pytest.mark.parametrize("length", [9, 12, 19, 20, 21, 22, 25, 40])
def test_shorter_and_longer_arrays_are_taken(length: int) -> None:
    items = [*ARRAY, None, None, 3, 0, 0, None, False, None, None, None, False, None, None]
    array = (items + [{"later": 1}] * 20)[:length]
    decoder = RequestDecoder()
    frames = [b"\x00", pack(array)]
    assert decoder.decode(frames).client_index == (3 if length > 11 else 0)
    assert decoder.add_length(frames) == length


def test_floats_come_in_both_sizes_and_as_integers() -> None:
    params = b"\x82\xabtemperature\xca\x3f\x00\x00\x00\xa5top_p\x01"
    payload = pack(ARRAY[:3])[:1].replace(b"\x93", b"\x99") + pack(ARRAY[:3])[1:] + params + b"\xc0\x02\xc0\xc0\xc0"
    taken = decode([b"\x00", payload])
    assert (taken.sampling_params.temperature, taken.sampling_params.top_p, taken.arrival_time) == (0.5, 1.0, 2.0)


INT_FIELDS = [
    "seed",
    "top_k",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "_eos_token_id",
    "thinking_token_budget",
]


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63, 2**64, float(2**64), -1e19])
@pytest.mark.parametrize("field", [*INT_FIELDS, "stop_token_ids", "priority", "data_parallel_rank", "prompt_token_ids"])
def test_integers_beyond_64_bits_end_at_their_sender(field: str, value: float) -> None:
    if field in ("priority", "data_parallel_rank"):
        wrong = request(**{field: value})
    elif field == "prompt_token_ids":
        wrong = request(prompt_token_ids=[1, value])
    else:
        name = field.removeprefix("_")
        wrong = request(sampling_params=SamplingParams(**{name: [value] if name == "stop_token_ids" else value}))
    encoder = RequestEncoder()
    with pytest.raises(LocalProtocolError, match=field.removeprefix("_")):
        encoder.add(wrong)
    assert decode(encoder.add(request())) == request(), "and leave no trace"


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 1e19, "1", True, None])
def test_wrong_integers_on_the_raw_wire_end_their_request_only(value: object) -> None:
    decoder = RequestDecoder()
    frames = add(sampling_params={"top_k": value}, client_index=2)
    with pytest.raises(RemoteProtocolError, match=r"sampling_params\.top_k"):
        decoder.decode(frames)
    assert decoder.salvage(frames) == ("a", 2)
    assert decoder.decode(add()) == request()


class Unencodable:
    pass


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (Unencodable(), r"extra_args\['k'\]\[1\]: values of type .*Unencodable cannot travel"),
        (threading.Lock(), r"extra_args\['k'\]\[1\]: .*lock cannot travel"),
        (int, "builtins.type cannot travel"),
        (2**70, r"extra_args\['k'\]\[1\]: can't serialize ints"),
        ("\ud800", "surrogates not allowed"),
        (CIRCLE, "nested too deeply, or in a circle"),
        (Tensor("float32", [2], b"1"), "has 8 bytes, not 1"),
        ({Unencodable(): 1}, "cannot travel"),
    ],
)
def test_what_cannot_be_carried_is_named(value: object, match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        RequestEncoder().add(request(sampling_params=SamplingParams(extra_args={"k": [0, value]})))
    with pytest.raises(LocalProtocolError):
        RequestEncoder().call(UtilityRequest(0, 1, "m", [0, value]))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sampling_params": None}, "exactly one of sampling_params and pooling_params"),
        ({"pooling_params": []}, "exactly one of sampling_params and pooling_params"),
        ({"prompt_token_ids": None}, "one of prompt_token_ids and prompt_embeds"),
        ({"prompt_token_ids": [1, -1]}, r"prompt_token_ids\[1\]"),
        ({"prompt_token_ids": [2**31]}, "prompt_token_ids"),
        ({"request_id": None}, "request_id"),
        ({"request_id": b"a"}, "request_id"),
        ({"client_index": -1}, "client_index"),
        ({"mm_features": [{}]}, "mm_features"),
        ({"lora_request": ["l", 1, "p", None, {}, "x"]}, "lora_request"),
        ({"lora_request": ["l", 1, "p", None, *[None] * 5000]}, "lora_request"),
        ({"prompt_embeds": ["float32", [1], 1]}, "prompt_embeds"),
        ({"prompt_embeds": ["float32", [1], {"sender_id": "0"}]}, "cannot reach this process"),
        ({"sampling_params": {"structured_outputs": {"json": 1}}}, "structured_outputs"),
        ({"sampling_params": {"extra_args": {"x": Ext(1, b"\x80\x04N.")}}}, "pickled object"),
        ({"reasoning_parser_kwargs": {"x": Ext(2, b"\x80\x04N.")}}, "pickled object"),
    ],
)
def test_wrong_requests_are_refused_by_field_and_can_be_answered(changes: dict[str, Any], match: str) -> None:
    decoder = RequestDecoder()
    frames = add(**changes)
    with pytest.raises(RemoteProtocolError, match=match):
        decoder.decode(frames)
    if "request_id" in changes:
        assert decoder.salvage(frames) is None
    else:
        assert decoder.salvage(frames) == ("a", changes.get("client_index", 0))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (["float32", [1], 5], "auxiliary frame 5"),
        ([["float32", [1], Ext(3, b"1")]], "has 4 bytes"),
        (["x"], "an array of"),
    ],
)
def test_tensors_in_multimodal_data_are_checked(data: Any, match: str) -> None:
    feature = {
        "data": {"p": {"data": data, "field": ["batched", {}]}},
        "modality": "i",
        "identifier": "i",
        "mm_position": {"offset": 0, "length": 1},
    }
    with pytest.raises(RemoteProtocolError, match=match):
        decode(add(mm_features=[feature]))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"\x00"],
        [b"", b""],
        [b"\x00", b""],
        [b"\x04", b"\x90"],
        [b"\x05", b"\x90"],
        [b"\xff" * 100, b"\x90"],
        [b"\x00\x00", pack(ARRAY)],
        [b"\x00", b"\xc1"],
        [b"\x00", b"\x80"],
        [b"\x00", b"\x90"],
        [b"\x00", b"\x91" * 100_000],
        [b"\x00", b"\xdd\x7f\xff\xff\xff"],
        [b"\x00", b"\xdd\xff\xff\xff\xff\xa1a"],
        [b"\x00", b"\xdf\xff\xff\xff\xff"],
        [b"\x00", b"\xc9\xff\xff\xff\xff\x03"],
        [b"\x00", b"\xdb\xff\xff\xff\xffaaaa"],
        [b"\x00", pack(ARRAY) + b"\xc0"],
        [b"\x00", *[pack(ARRAY)] * (MAX_AUX_FRAMES + 2)],
        [b"\x01", pack(["a"]), b""],
        [b"\x01", pack([1])],
        [b"\x01", pack("a")],
        [b"\x01", b"\xdd\x7f\xff\xff\xff"],
        [b"\x02", pack([3, 1]), b""],
        [b"\x02", pack([])],
        [b"\x02", pack([3, "x"])],
        [b"\x03", pack([0, 1, "m"])],
        [b"\x03", pack([0, 1, 2, []])],
        [b"\x03", pack([0, 1.5, "m", []])],
        [b"\x03", b"\x94\x00\x01\xa1m" + b"\x91" * 900 + b"\xc0"],
        [b"\x03", pack([0, 1, "m", [Ext(1, b"\x80\x04N.")]])],
    ],
)
def test_junk_is_a_protocol_error_whatever_it_is(frames: list[bytes]) -> None:
    decoder = RequestDecoder()
    with pytest.raises(RemoteProtocolError):
        decoder.decode(frames)
    decoder.salvage(frames)
    decoder.salvage_call(frames)
    decoder.add_length(frames)
    assert decoder.decode(add()) == request(), "and ends nothing"


def test_calls_that_cannot_be_read_can_be_answered() -> None:
    frames = [b"\x03", pack([3, 2**64 - 1, "sleep", [Ext(1, b"x")]])]
    assert RequestDecoder().salvage_call(frames) == (3, 2**64 - 1, "sleep")
    assert RequestDecoder().salvage(frames) is None
    assert RequestDecoder().salvage_call(add()) is None


def test_control_messages_survive_the_crossing() -> None:
    encoder = RequestEncoder()
    assert decode(encoder.abort(["a", "b"])) == AbortRequest(["a", "b"])
    for exclude in (None, 1, b"\x01\x00"):
        assert decode(encoder.start_wave(StartDPWave(3, exclude))) == StartDPWave(3, exclude)
    for call_id in (0, -1, 2**64 - 1, -(2**63)):
        call = UtilityRequest(1, call_id, "sleep", [1, {"k": Tensor("uint8", [300], bytes(300))}])
        assert decode(encoder.call(call)) == call


@pytest.mark.parametrize("ids", [[], [1], [None]])
def test_empty_and_wrong_aborts_are_not_sent(ids: list[Any]) -> None:
    with pytest.raises(LocalProtocolError, match="ABORT"):
        RequestEncoder().abort(ids)


@pytest.mark.parametrize("call_id", [2**64, -(2**63) - 1])
def test_call_ids_beyond_64_bits_are_not_sent(call_id: int) -> None:
    with pytest.raises(LocalProtocolError, match="64 bits"):
        RequestEncoder().call(UtilityRequest(0, call_id, "m", []))


def test_frames_of_any_bytes_like_kind_are_read() -> None:
    frames = RequestEncoder(NEWEST).add(request(prompt_embeds=Tensor("uint8", [300], bytes(300))))
    for kind in (bytes, bytearray, memoryview):
        assert decode([kind(frame) for frame in frames]) == decode(frames)


@pytest.mark.parametrize("request_id", ["", "a", "x" * 31, "x" * 32, "墙" * 100, "x" * 300, "x" * 60_000])
@pytest.mark.parametrize("tokens", [0, 1, 15, 16, 65_535, 65_536])
def test_the_heading_of_a_request_is_read_without_the_rest(request_id: str, tokens: int) -> None:
    kind, payload = add(request_id=request_id, prompt_token_ids=[1] * tokens)
    assert RequestDecoder().heading([kind, payload]) == (request_id, tokens)
    assert RequestDecoder().heading([kind, memoryview(payload)[: len(payload) - 30]]) == (request_id, tokens)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"\x00"],
        [b"\x01", pack(["a"])],
        [b"\x00", b""],
        [b"\x00", pack(["a"])],
        [b"\x00", pack([7, [1]])],
        [b"\x00", b"\xdc\x00"],
        [b"\x00", b"\x92\xdb\xff\xff\xff\xff"],
        [b"\x00", b"\x92\xa1\xff\x90"],
    ],
)
def test_what_has_no_heading(frames: list[bytes]) -> None:
    assert RequestDecoder().heading(frames) is None


def test_a_request_without_tokens_has_none_in_its_heading() -> None:
    assert RequestDecoder().heading(add(prompt_token_ids=None)) == ("a", 0)
