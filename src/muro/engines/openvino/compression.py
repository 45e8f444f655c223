"""Weights in int8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def quantize_int8(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric int8 per output channel: `weight` [out, in] is about `values * scales`, scales [out, 1]."""
    scales = np.abs(weight).max(axis=1, keepdims=True) / 127
    scales[scales == 0] = 1
    values = np.rint(weight / scales).astype(np.int8)
    return values, scales.astype(np.float32)
