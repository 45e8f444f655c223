"""The memory of the key/value cache: arrays of blocks that the compiled model reads and writes."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov

from muro.errors import ConfigError

_HUGE_FROM = 4 << 20
"""Bytes from which on larger pages are worth while; as in numpy."""


class CacheMemory:
    """One array per layer and kind, [blocks, heads, tokens, size]; OpenVINO does not keep them alive.

    Mapped one by one instead of taken from the heap: pages take no memory until a block is used, all of them can be
    given back at once, and then they are zeros again. So unused lanes of a block never hold NaN.

    Args:
        compiled: a model with paged attention.
        budget: bytes for all of them together.
    """

    def __init__(self, compiled: ov.CompiledModel, budget: int) -> None:
        inputs = dict(_inputs(compiled))
        # With u8, scales lie behind the tokens of keys and the sizes of values.
        block_bytes = sum(dtype.itemsize * int(np.prod(shape)) for shape, dtype in inputs.values())
        self.num_blocks = budget // block_bytes
        self.block_size = inputs["value_cache.0"][0][1]
        self.num_bytes = self.num_blocks * block_bytes
        self._maps: list[mmap.mmap] = []
        self._arrays = {name: self._array(shape, dtype) for name, (shape, dtype) in inputs.items()}

    def give_to(self, request: ov.InferRequest) -> None:
        """Let a request use it. Raises ConfigError if it is a request to a model of another kind."""
        found = {name: (self.num_blocks, *shape) for name, (shape, _) in _inputs(request.get_compiled_model())}
        if found != {name: array.shape for name, array in self._arrays.items()}:
            raise ConfigError("the model directory now holds another model than at the start; start the engine again")
        for name, array in self._arrays.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def release(self) -> None:
        """Give the memory back to the system; the room stays, filled with zeros. Nothing may be reading it."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        whole = (self.num_blocks, *shape)
        if not self.num_blocks:
            return np.zeros(whole, dtype)
        size = dtype.itemsize * int(np.prod(whole))
        # A shared mapping would not let go of its pages.
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self._maps.append(mapped)
        return np.frombuffer(mapped, dtype).reshape(whole)


def _inputs(compiled: ov.CompiledModel) -> Iterator[tuple[str, tuple[tuple[int, ...], np.dtype[Any]]]]:
    """Name, shape of a block, and type of each array. Gives no ports away: one alone keeps a whole model alive."""
    for port in compiled.inputs:
        if port.any_name.startswith(("key_cache.", "value_cache.")):
            shape = tuple(dim.get_length() for dim in list(port.partial_shape)[1:])
            yield port.any_name, (shape, np.dtype(port.element_type.to_dtype()))
