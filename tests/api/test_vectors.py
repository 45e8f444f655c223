"""Every recorded frame decodes to what was recorded, and what we encode decodes to the same."""

from typing import Any

import msgspec
import pytest

from muro.errors import LocalProtocolError
from muro.wire import coordination
from muro.wire.codec import DEAD, OutputDecoder, OutputEncoder, RequestDecoder, RequestEncoder
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.frames import ENGINE_CORE_DEAD, SUBSCRIBE, rank_of
from muro.wire.handshake import (
    EngineHandshake,
    Expected,
    FrontendHandshake,
    decode_init,
    decode_ready_response,
    encode_init,
)
from muro.wire.ops import OPS
from muro.wire.releases import LAYOUTS, SAFE
from muro.wire.request import EngineCoreRequest
from tests.support.vectors import Vector, differences, tree_differences, vectors

ALL = vectors()
REQUESTS = {"ADD", "ABORT", "UTILITY", "START_DP_WAVE"}
HANDSHAKE = {"HELLO", "INIT", "READY", "READY_RESPONSE"}
COORDINATION = {"SUBSCRIBE", "PUBLISH", "FIRST_REQUEST", "SCALE"}
OUTPUTS = {"EngineCoreOutputs", "ENGINE_CORE_DEAD"}


def of(*messages: str) -> pytest.MarkDecorator:
    chosen = [v for v in ALL if v.message in messages]
    return pytest.mark.parametrize("vector", chosen, ids=[f"{v.file}-{v.name}" for v in chosen])


def test_every_vector_is_of_a_kind_tested_below() -> None:
    assert len(ALL) == 180
    assert {v.message for v in ALL} == REQUESTS | HANDSHAKE | COORDINATION | OUTPUTS


def encode_request(encoder: RequestEncoder, message: Any) -> list[Any]:
    match message:
        case EngineCoreRequest():
            return encoder.add(message)
        case AbortRequest():
            return encoder.abort(message.request_ids)
        case UtilityRequest():
            return encoder.call(message)
        case StartDPWave():
            return encoder.start_wave(message)
    raise AssertionError(message)


@of("ADD", "ABORT", "UTILITY", "START_DP_WAVE")
def test_requests(vector: Vector) -> None:
    ours = RequestDecoder().decode(vector.bytes)
    if fields := vector.decoded.get("fields"):
        assert differences(fields, ours) == []
    compared: Any = ours.request_ids if isinstance(ours, AbortRequest) else ours
    tree = vector.tree
    if vector.message == "UTILITY" and vector.minor < 32:
        tree[3] = [arg[:4] + arg[5:] if tree[2] == "add_lora" else arg for arg in tree[3]]
    assert without_multimodal(tree_differences(tree, compared, vector.bytes[1:], vector.minor)) == []
    for encoder in (RequestEncoder(LAYOUTS[f"0.{vector.minor}"]), RequestEncoder()):
        again = RequestDecoder().decode(encode_request(encoder, ours))
        assert again == ours


def without_multimodal(found: list[str]) -> list[str]:
    """Tensors nested in a feature's data are triples in the tree; the recorded fields cover them."""
    return [difference for difference in found if not difference.startswith(".mm_features")]


@of("EngineCoreOutputs")
def test_outputs(vector: Vector) -> None:
    ours = OutputDecoder(vector.release).decode(vector.bytes)
    assert ours is not DEAD
    if vector.name == "utility_typed_result":
        assert "type information" in ours.utility_output.failure_message
        assert ours.utility_output.result is None
        return
    assert OutputDecoder("unknown").decode(vector.bytes) == ours, "the layout is told by the lengths"
    if fields := vector.decoded.get("fields"):
        assert differences(fields, ours) == []
    assert tree_differences(vector.tree, ours, vector.bytes, vector.minor) == []
    encoder = OutputEncoder(LAYOUTS[f"0.{vector.minor}"])
    if vector.name == "empty_envelope":
        with pytest.raises(LocalProtocolError, match="must hold one of"):
            encoder.encode(ours, bytearray())
        return
    assert OutputDecoder(vector.release).decode(encoder.encode(ours, bytearray())) == ours


@of("EngineCoreOutputs")
def test_outputs_in_the_safe_layout_say_the_same_as_far_as_it_goes(vector: Vector) -> None:
    if vector.name in ("utility_typed_result", "empty_envelope"):
        return
    ours: Any = OutputDecoder(vector.release).decode(vector.bytes)
    frames = OutputEncoder(SAFE).encode(ours, bytearray())
    for reader in ("0.25.1", "0.33.0"):
        safe: Any = OutputDecoder(reader).decode(frames)
        for mine, theirs in zip(ours.outputs, safe.outputs, strict=True):
            assert msgspec.structs.astuple(theirs)[:9] == msgspec.structs.astuple(mine)[:9]
            assert msgspec.structs.astuple(theirs)[9:] == (None, None, None, None, 0, None, None, None, None, None)


@of("ENGINE_CORE_DEAD")
def test_death_notice(vector: Vector) -> None:
    assert OutputDecoder().decode(vector.bytes) is DEAD
    assert vector.bytes == [ENGINE_CORE_DEAD]


@of("INIT")
def test_init(vector: Vector) -> None:
    init = decode_init(vector.bytes[-1])
    assert tree_differences(vector.tree, init, [], vector.minor) == []
    assert msgspec.msgpack.decode(encode_init(init)) == msgspec.msgpack.decode(vector.bytes[-1])


@of("READY_RESPONSE")
def test_ready_response(vector: Vector) -> None:
    response = decode_ready_response(vector.bytes[-1])
    assert tree_differences(vector.tree, response, [], vector.minor) == []
    keys = msgspec.msgpack.decode(response.encode())
    assert vector.tree.items() <= keys.items()
    newest = next(v for v in ALL if v.message == "READY_RESPONSE" and v.minor == 33)
    assert keys.keys() >= newest.tree.keys(), "all keys of 0.33 are written whatever was read"
    assert decode_ready_response(response.encode()) == response


@of("HELLO")
def test_hello(vector: Vector) -> None:
    tree = vector.tree
    engine = EngineHandshake(tree["local"], tree["headless"])
    assert msgspec.msgpack.decode(engine.hello()) == tree
    assert front(tree).receive([b"\x00\x00", vector.bytes[-1]])[0][0] == b"\x00\x00"


@of("READY")
def test_ready(vector: Vector) -> None:
    tree = vector.tree
    identity = vector.bytes[0] if len(vector.bytes) == 2 else b"\x00\x00"
    engine = EngineHandshake(tree["local"], tree["headless"])
    frontend = front(tree)
    [(_, init)] = frontend.receive([identity, engine.hello()])
    engine.receive(init)
    assert msgspec.msgpack.decode(engine.ready(tree.get("parallel_config_hash"))) == tree
    assert frontend.receive([identity, vector.bytes[-1]]) == []
    assert "ready response" in frontend.missing()[rank_of(identity)]


def front(tree: dict[str, Any]) -> FrontendHandshake:
    init = decode_init(next(v for v in ALL if v.message == "INIT").bytes[-1])
    return FrontendHandshake({rank_of(b"\x00\x00"): Expected(tree["local"], tree["headless"])}, init)


@of("PUBLISH")
def test_publication(vector: Vector) -> None:
    news = coordination.decode_publication(vector.bytes[0])
    assert tree_differences(vector.tree, news, [], vector.minor) == []
    assert coordination.encode(news) == vector.bytes[0]


@of("FIRST_REQUEST", "SCALE")
def test_notice_to_the_coordinator(vector: Vector) -> None:
    notice = coordination.decode_notice(vector.bytes[0])
    assert tree_differences(vector.tree, notice, [], vector.minor) == []
    assert coordination.encode(notice) == vector.bytes[0]


@of("SUBSCRIBE")
def test_subscription(vector: Vector) -> None:
    assert vector.bytes == [SUBSCRIBE]


@of("UTILITY")
def test_calls_of_known_operations_have_the_declared_arguments(vector: Vector) -> None:
    call = RequestDecoder().decode(vector.bytes)
    assert isinstance(call, UtilityRequest)
    checked = OPS[call.method].check_args(tuple(call.args))
    assert len(checked) == len(call.args)
