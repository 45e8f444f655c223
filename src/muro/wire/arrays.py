"""Tensors and arrays on the wire (protocol section 12): `[dtype, shape, data]`.

A `Tensor` keeps the bytes and leaves numpy alone until somebody asks for an array, so that a process that
never meets one never imports it. The data lie inline as an extension, or in an auxiliary frame of the message
that is named by its index; any other place is the business of a `TensorSource`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard, TypeVar

import msgspec

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire.frames import Frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

RAW_EXT: Final = 3
"""Extension type of inline array bytes. Types 1 and 2 hold pickled objects and are refused."""
INLINE_BELOW: Final = 256
"""Size in bytes from which on a writer puts an array into an auxiliary frame."""
MAX_DIMENSIONS: Final = 32

_TORCH_SIZES: Final = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
_NUMPY_TYPE: Final = re.compile(r"[<|=]([biufc])(1|2|4|8|16)")
_FLOAT8: Final = re.compile(r"float8_[a-z0-9]{1,16}")


class Tensor:
    """A dense row-major little-endian tensor.

    `dtype` is torch's name ("float32", "bfloat16", ...) for tensors and numpy's type string ("<f4", ...) for
    arrays; both occur on the wire and mean the same here. `shape` is [] for a scalar. `data` are exactly the
    tensor's bytes; received ones are read-only, and a view of their message.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: Sequence[int], data: Frame) -> None:
        self.dtype = dtype
        self.shape = list(shape)
        self.data = data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        mine, theirs = (self.dtype, self.shape, bytes(self.data)), (other.dtype, other.shape, bytes(other.data))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Tensor({self.dtype!r}, {self.shape}, {len(self.data)} bytes)"

    def numpy(self) -> NDArray[Any]:
        """The tensor as an array: a read-only view of received data, or a copy where those lie unaligned.

        bfloat16, which numpy lacks, becomes float32. Raises LocalProtocolError for float8 types.
        """
        import numpy as np

        if self.dtype.startswith("float8"):
            raise LocalProtocolError(f"numpy has no type {self.dtype}; take the bytes in `data`")
        kind = "<u2" if self.dtype == "bfloat16" else self.dtype
        flat = np.frombuffer(self.data, dtype=np.dtype(kind).newbyteorder("<"))
        if self.dtype == "bfloat16":
            flat = (flat.astype("<u4") << 16).view("<f4")
        if not flat.flags.aligned:
            flat = flat.copy()
        return flat.reshape(self.shape)


class TensorSource(Protocol):
    """Where tensors come from that travel neither inline nor in an auxiliary frame."""

    def fetch(self, handle: Mapping[str, Any]) -> Frame:
        """The bytes behind a handle. Raises ValueError for one that is unknown."""
        ...


def tensor_from_numpy(array: NDArray[Any], dtype: str | None = None) -> Tensor:
    """A tensor with the array's bytes, without a copy if they are in order.

    Its dtype is numpy's type string, unless a torch name of the same type is given.
    Raises LocalProtocolError for types that cannot travel (objects, text, times).
    """
    import numpy as np

    ordered = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    name = dtype or ordered.dtype.str
    if item_size(name) != ordered.dtype.itemsize:
        raise LocalProtocolError(f"an array of type {array.dtype} cannot travel as {name!r}")
    # Not a cast of the array's own buffer: that fails for empty arrays.
    return Tensor(name, array.shape, ordered.reshape(-1).view(np.uint8).data)


def item_size(dtype: str) -> int | None:
    """Bytes of one element, or None for a type that cannot travel."""
    if size := _TORCH_SIZES.get(dtype):
        return size
    if found := _NUMPY_TYPE.fullmatch(dtype):
        return int(found[2])
    return 1 if _FLOAT8.fullmatch(dtype) else None


def fault_of(dtype: object, shape: object, nbytes: int | None) -> str | None:
    """What is wrong with a tensor of this type and shape and as many bytes (None: any), or None."""
    if not isinstance(dtype, str):
        return f"the type of a tensor is a {type(dtype).__name__}, not text"
    size = item_size(dtype)
    if size is None:
        return f"tensors of type {dtype[:40]!r} cannot travel"
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        return "the shape of a tensor must be a list of integers, none negative"
    if len(shape) > MAX_DIMENSIONS:
        return f"a tensor with {len(shape)} dimensions; the limit is {MAX_DIMENSIONS}"
    wanted = math.prod(shape) * size
    if nbytes is not None and nbytes != wanted:
        return f"a tensor of type {dtype} and shape {shape} has {wanted} bytes, not {nbytes}"
    return None


class Outgoing:
    """Encoder's side: turns tensors into triples and gathers the auxiliary frames, in encoding order."""

    __slots__ = ("frames", "met_tensors")

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.met_tensors = False

    def reset(self) -> None:
        """Begin another message."""
        self.frames = []
        self.met_tensors = False

    def hook(self, value: object) -> Any:
        """For msgspec: what to write for a value that it does not know. Raises TypeError, LocalProtocolError."""
        if isinstance(value, Tensor):
            return self._triple(value)
        if _is_array(value):
            return self._triple(tensor_from_numpy(value))
        if _is_scalar(value):
            return value.item()
        raise TypeError(f"values of type {type(value).__module__}.{type(value).__qualname__} cannot travel")

    def _triple(self, tensor: Tensor) -> tuple[str, list[int], int | msgspec.msgpack.Ext]:
        self.met_tensors = True
        data = memoryview(tensor.data)
        if fault := fault_of(tensor.dtype, tensor.shape, data.nbytes):
            raise LocalProtocolError(fault)
        if data.nbytes < INLINE_BELOW or not tensor.shape:
            return tensor.dtype, tensor.shape, msgspec.msgpack.Ext(RAW_EXT, data)
        self.frames.append(data)
        return tensor.dtype, tensor.shape, len(self.frames)


class Incoming:
    """Decoder's side: finds the bytes of tensors. `frames` are those of the message, its payload first."""

    __slots__ = ("frames", "source")

    def __init__(self, source: TensorSource | None = None) -> None:
        self.frames: Sequence[Frame] = ()
        self.source = source

    def decoder(self, kind: type[T]) -> msgspec.msgpack.Decoder[T]:
        """A decoder whose tensors are found here."""
        return msgspec.msgpack.Decoder(kind, dec_hook=self.hook, ext_hook=self.extension)

    def hook(self, kind: type, value: Any) -> Tensor:
        """For msgspec: the tensor for a decoded triple. Raises ValueError, which msgspec completes by the place."""
        if kind is not Tensor:
            raise NotImplementedError(f"no decoding for {kind}")
        if not isinstance(value, list) or len(value) != 3:
            raise ValueError("a tensor must be an array of type, shape and data")
        dtype, shape, place = value
        data = self._data(place)
        if fault := fault_of(dtype, shape, len(data)):
            raise ValueError(fault)
        return Tensor(dtype, shape, data)

    def extension(self, code: int, data: memoryview) -> memoryview:
        """For msgspec: the bytes of an extension. Raises RemoteProtocolError for all types but raw array bytes."""
        if code == RAW_EXT:
            return data
        what = "holds a pickled object" if code in (1, 2) else "is unknown"
        raise RemoteProtocolError(f"extension type {code} {what}; refused")

    def nested(self, value: Any, *, only_certain: bool) -> Any:
        """A freely nested value with tensors for the triples in it.

        A list whose first element is text is a triple. With `only_certain`, where other lists may occur too,
        it must also look like one, and an index must lie within the frames of this message.
        """
        if isinstance(value, dict):
            return {key: self.nested(item, only_certain=only_certain) for key, item in value.items()}
        if not isinstance(value, list):
            return value
        if value and isinstance(value[0], str) and (not only_certain or self._is_triple(value)):
            return self.hook(Tensor, value)
        return [self.nested(item, only_certain=only_certain) for item in value]

    def _is_triple(self, value: list[Any]) -> bool:
        if len(value) != 3 or fault_of(value[0], value[1], None) is not None:
            return False
        place = value[2]
        return isinstance(place, memoryview) or (type(place) is int and 0 < place < len(self.frames))

    def _data(self, place: Any) -> Frame:
        if isinstance(place, memoryview):
            return place
        if type(place) is int:
            if not 0 < place < len(self.frames):
                raise ValueError(f"auxiliary frame {place} of a message with {len(self.frames) - 1} of them")
            return self.frames[place]
        if isinstance(place, dict):
            if self.source is None:
                raise ValueError("a tensor that travels outside of its message (torch_shm) cannot reach this process")
            return self.source.fetch(place)
        raise ValueError("the data of a tensor must be an extension, or the index of an auxiliary frame")


def _is_array(value: object) -> TypeGuard[NDArray[Any]]:
    numpy = sys.modules.get("numpy")  # whoever has an array has imported it
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_scalar(value: object) -> TypeGuard[np.generic[Any]]:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)
