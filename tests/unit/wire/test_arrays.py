import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire.arrays import Incoming, Outgoing, Tensor, fault_of, item_size, tensor_from_numpy

Ext = msgspec.msgpack.Ext


class Holder(msgspec.Struct, array_like=True):
    tensor: Tensor | None = None
    anything: Any = None


def travel(value: Tensor, rest: object = None) -> Holder:
    out = Outgoing()
    payload = msgspec.msgpack.Encoder(enc_hook=out.hook).encode(Holder(value, rest))
    incoming = Incoming()
    incoming.frames = [payload, *out.frames]
    return incoming.decoder(Holder).decode(payload)


TYPES = st.one_of(
    arrays.integer_dtypes(endianness="<"), arrays.unsigned_integer_dtypes(endianness="<"),
    arrays.floating_dtypes(endianness="<", sizes=(16, 32, 64)), arrays.boolean_dtypes(),
    arrays.complex_number_dtypes(endianness="<", sizes=(64, 128)),
)  # fmt: skip


@given(TYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0))))
def test_arrays_of_any_type_and_shape_survive_the_crossing(array: np.ndarray) -> None:
    tensor = tensor_from_numpy(array)
    assert tensor.shape == list(array.shape)
    back = travel(tensor).tensor
    assert back == tensor
    np.testing.assert_array_equal(back.numpy(), array)
    assert back.numpy().dtype == array.dtype


@pytest.mark.parametrize("array", [np.arange(24, dtype="<i4").reshape(4, 6)[:, ::2], np.arange(3, dtype=">i4")])
def test_views_and_foreign_byte_orders_are_put_in_order(array: np.ndarray) -> None:
    np.testing.assert_array_equal(travel(tensor_from_numpy(array)).tensor.numpy(), array)


def test_from_256_bytes_on_data_travel_in_auxiliary_frames_in_encoding_order() -> None:
    out = Outgoing()
    encoder = msgspec.msgpack.Encoder(enc_hook=out.hook)
    sizes = (255, 256, 300)
    tensors = [Tensor("uint8", [size], bytes(size)) for size in sizes]
    triples = msgspec.msgpack.decode(encoder.encode(tensors))
    assert [triple[2] if isinstance(triple[2], int) else "inline" for triple in triples] == ["inline", 1, 2]
    assert [len(frame) for frame in out.frames] == [256, 300]
    out.reset()
    assert out.frames == []


def test_scalars_travel_inline_whatever_the_size() -> None:
    assert isinstance(msgspec.msgpack.decode(msgspec.msgpack.encode(np.float64(1.5), enc_hook=Outgoing().hook)), float)
    assert travel(tensor_from_numpy(np.array(2.5))).tensor.numpy() == 2.5


def test_bfloat16_becomes_float32_and_float8_stays_bytes() -> None:
    values = np.array([1.0, -2.5, 0.0], dtype="<f4")
    tensor = Tensor("bfloat16", [3], (values.view("<u4") >> 16).astype("<u2").tobytes())
    np.testing.assert_array_equal(tensor.numpy(), values)
    eight = travel(Tensor("float8_e4m3fn", [2], b"ab")).tensor
    assert bytes(eight.data) == b"ab"
    with pytest.raises(LocalProtocolError, match="float8_e4m3fn"):
        eight.numpy()


def test_received_arrays_are_aligned_and_read_only() -> None:
    back = travel(Tensor("float64", [2], np.array([1.0, 2.0]).tobytes())).tensor
    array = back.numpy()
    assert array.flags.aligned
    for start in range(8):
        assert Tensor("int64", [1], memoryview(bytes(16))[start : start + 8]).numpy().flags.aligned


def test_tensors_nested_in_free_values_are_encoded_and_found() -> None:
    out = Outgoing()
    value = {"a": [Tensor("uint8", [300], bytes(300)), 1.5, ["x", "y"]], "b": np.arange(2, dtype="<i8")}
    payload = msgspec.msgpack.encode(value, enc_hook=out.hook)
    incoming = Incoming()
    incoming.frames = [payload, *out.frames]
    back = incoming.nested(incoming.decoder(dict).decode(payload), only_certain=True)
    assert back == {"a": [value["a"][0], 1.5, ["x", "y"]], "b": Tensor("<i8", [2], np.arange(2).tobytes())}


def test_lists_that_only_resemble_a_tensor_are_left_alone_where_other_lists_may_occur() -> None:
    incoming = Incoming()
    incoming.frames = [b"payload", b"aux"]
    for value in (["float32", [1], 2], ["text", [1], 1], ["float32", "x", 1], ["float32", [1], True], ["float32"]):
        assert incoming.nested([value], only_certain=True) == [value]


NOT_TENSORS = [
    (None, "an array of type, shape and data"),
    (["float32", [1]], "an array of type, shape and data"),
    (["float32", [1], 1, 1], "an array of type, shape and data"),
    ([1, [1], Ext(3, b"1234")], "is a int, not text"),
    (["object", [1], Ext(3, b"1234")], "'object' cannot travel"),
    (["|O8", [1], Ext(3, b"12345678")], "cannot travel"),
    (["|V4", [1], Ext(3, b"1234")], "cannot travel"),
    ([">f4", [1], Ext(3, b"1234")], "cannot travel"),
    (["float32", 1, Ext(3, b"1234")], "must be a list of integers"),
    (["float32", [1.0], Ext(3, b"1234")], "must be a list of integers"),
    (["float32", [True], Ext(3, b"1234")], "must be a list of integers"),
    (["float32", [-1], Ext(3, b"")], "none negative"),
    (["float32", [-1, -1], Ext(3, b"1234")], "none negative"),
    (["float32", [2], Ext(3, b"1234")], "has 8 bytes, not 4"),
    (["float32", [2**62, 2**62], Ext(3, b"1234")], "not 4"),
    (["float32", [2**63, 2], Ext(3, b"")], "not 0"),
    (["float32", [1] * 33, Ext(3, b"1234")], "33 dimensions"),
    (["float32", [1], 0], "auxiliary frame 0 of a message with 1"),
    (["float32", [1], 2], "auxiliary frame 2 of a message with 1"),
    (["float32", [1], -1], "auxiliary frame -1"),
    (["float32", [1], True], "must be an extension"),
    (["float32", [1], "x"], "must be an extension"),
    (["float32", [1], b"1234"], "must be an extension"),
    (["float32", [1], {"sender_id": "0", "message_id": 1, "tensor_id": 0}], "cannot reach this process"),
]


@pytest.mark.parametrize(("triple", "match"), NOT_TENSORS)
def test_what_is_no_tensor_is_refused(triple: object, match: str) -> None:
    incoming = Incoming()
    payload = msgspec.msgpack.encode([{"not": "nil"}] if triple is None else [triple])
    incoming.frames = [payload, b"1234"]
    with pytest.raises(msgspec.ValidationError, match=match):
        incoming.decoder(Holder).decode(payload)


@pytest.mark.parametrize(
    ("code", "match"), [(1, "pickled object"), (2, "pickled object"), (4, "unknown"), (127, "unknown")]
)
def test_other_extensions_are_refused_wherever_they_stand(code: int, match: str) -> None:
    for value in ([Ext(code, b"x")], [None, {"deep": [Ext(code, b"x")]}], [["float32", [1], Ext(code, b"1234")]]):
        with pytest.raises(RemoteProtocolError, match=match):
            Incoming().decoder(Holder).decode(msgspec.msgpack.encode(value))


def test_a_source_serves_what_travels_elsewhere() -> None:
    class Memory:
        def fetch(self, handle: object) -> bytes:
            if handle != {"tensor_id": 7}:
                raise ValueError("no such tensor")
            return b"1234"

    incoming = Incoming(Memory())
    decoder = incoming.decoder(Holder)
    found = decoder.decode(msgspec.msgpack.encode([["float32", [1], {"tensor_id": 7}]]))
    assert found.tensor == Tensor("float32", [1], b"1234")
    with pytest.raises(msgspec.ValidationError, match="no such tensor"):
        decoder.decode(msgspec.msgpack.encode([["float32", [1], {"tensor_id": 8}]]))


@pytest.mark.parametrize(
    "value", [Tensor("float32", [2], b"1"), Tensor("object", [1], b"1"), Tensor("float32", [-1], b"")]
)
def test_wrong_tensors_are_not_sent(value: Tensor) -> None:
    with pytest.raises(LocalProtocolError):
        travel(value)


@pytest.mark.parametrize("array", [np.array([object()]), np.array(["x"]), np.array([1], dtype="M8[s]")])
def test_arrays_of_other_things_are_not_sent(array: np.ndarray) -> None:
    with pytest.raises(LocalProtocolError, match="cannot travel"):
        tensor_from_numpy(array)


def test_a_torch_name_must_fit_the_array() -> None:
    array = np.zeros(2, dtype="<u2")
    assert tensor_from_numpy(array, "bfloat16").dtype == "bfloat16"
    with pytest.raises(LocalProtocolError, match="float32"):
        tensor_from_numpy(array, "float32")


def test_sizes_and_faults() -> None:
    assert [item_size(name) for name in ("bool", "|b1", "<f2", "complex128", "float8_e5m2", "<U4", "f4")] == [
        1, 1, 2, 16, 1, None, None,
    ]  # fmt: skip
    assert fault_of("float32", [2, 3], 24) is None
    assert Tensor("uint8", [1], b"a") != "a"
    assert repr(Tensor("uint8", [1], b"a")) == "Tensor('uint8', [1], 1 bytes)"


def test_a_process_that_meets_no_array_never_imports_numpy() -> None:
    program = (
        "import sys, muro.wire.codec as codec\n"
        "from muro.wire.output import *\n"
        "frames = codec.OutputEncoder().encode(EngineCoreOutputs(outputs=[EngineCoreOutput('a', [1])]), bytearray())\n"
        "codec.OutputDecoder().decode(frames)\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
