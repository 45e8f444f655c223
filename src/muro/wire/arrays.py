"""Tensors and arrays on the wire (protocol section 12): `[dtype, shape, data]`.

A `Tensor` keeps the bytes and leaves numpy alone until somebody asks for an array, so that a process
that never meets one never imports it. Where the bytes come from when they are not inline is the business
of a `TensorSource`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Tensor(msgspec.Struct, array_like=True):
    """A dense row-major little-endian tensor.

    `dtype` is torch's name ("float32", "bfloat16", ...) for tensors and numpy's type string ("<f4", ...)
    for arrays; both occur on the wire. `data` is a bytes-like object of exactly the tensor's size.
    """

    dtype: str
    shape: list[int]
    data: Any
