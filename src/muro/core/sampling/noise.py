"""The randomness of sampling: a hash for each (seed, position, token id), without any history.

So a request draws the same wherever and in whatever company it runs. It must never change: a continued request has to
draw what its first attempt would have drawn, also after an upgrade.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muro.core.sampling.settings import Ids

Words = NDArray[np.uint64]

_MASK64 = 2**64 - 1
_STRIDE, _OFFSET = 0x9E3779B1, 0x7F4A7C15
_FIRST, _SECOND = 0x21F0AAAD, 0xD35A2D97
_STRIDE_INVERSE, _FIRST_INVERSE, _SECOND_INVERSE = (pow(factor, -1, 2**32) for factor in (_STRIDE, _FIRST, _SECOND))


class Noise:
    """A hash of 32 bits for each key and token id; `gumbel` turns it into noise.

    It is two rounds of multiply and xor-shift (the constants are those of "lowbias32" by Chris Wellons) over
    a mixed token id, with the two halves of the key mixed in. For one key it is a bijection, so the ids of the smallest
    hashes (the largest noise) can be told without hashing all ids.
    """

    def __init__(self, vocab_size: int) -> None:
        ids = np.arange(vocab_size, dtype=np.uint32)
        self._mixed_ids = _mix32(ids * np.uint32(_STRIDE) + np.uint32(_OFFSET))

    def hashes(self, keys: Words, counts: NDArray[np.intp], ids: Ids) -> NDArray[np.uint32]:
        """The hash of each of `ids`; the first `counts[0]` of them are for `keys[0]`, and so on."""
        values = self._mixed_ids[ids]
        values ^= np.repeat(_low(keys), counts)
        return _mix32(values, np.repeat(_high(keys), counts))

    def ids_below(self, keys: Words, limits: NDArray[np.int64]) -> list[Ids]:
        """For each key the ids whose hash is below its limit, in no order. Costs as much as sum(limits) hashes."""
        ends = np.cumsum(limits)
        values = np.arange(ends[-1], dtype=np.uint32)
        values -= np.repeat((ends - limits).astype(np.uint32), limits)
        values = _unmix32(values, np.repeat(_high(keys), limits))
        values ^= np.repeat(_low(keys), limits)
        values = _unmix32(values)
        values -= np.uint32(_OFFSET)
        values *= np.uint32(_STRIDE_INVERSE)
        places = np.flatnonzero(values < np.uint32(len(self._mixed_ids)))
        ids = values[places].astype(np.intp)
        return np.split(ids, np.searchsorted(places, ends[:-1]))


def noise_key(seed: int, position: int) -> int:
    """64 bits for a position of the output of a request: SplitMix64 over both."""
    return _splitmix64(_splitmix64(seed & _MASK64) + position & _MASK64)


def gumbel(hashes: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Standard Gumbel noise, between about -3.1 and 22.9, from hashes of 32 bits; the smaller, the larger."""
    uniform = (hashes + np.float64(0.5)) * 2.0**-32
    noise: NDArray[np.float64] = -np.log(-np.log1p(-uniform))
    return noise


def _low(keys: Words) -> NDArray[np.uint32]:
    return keys.astype(np.uint32)


def _high(keys: Words) -> NDArray[np.uint32]:
    return (keys >> np.uint64(32)).astype(np.uint32)


def _mix32(values: NDArray[np.uint32], keys: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
    """Mix in place and return `values`; a bijection of 32 bits."""
    shifted = values >> np.uint32(16)
    values ^= shifted
    values *= np.uint32(_FIRST)
    if keys is not None:
        values ^= keys
    values ^= np.right_shift(values, np.uint32(15), out=shifted)
    values *= np.uint32(_SECOND)
    values ^= np.right_shift(values, np.uint32(15), out=shifted)
    return values


def _unmix32(values: NDArray[np.uint32], keys: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
    """Undo `_mix32`, in place. A shift by 15 is undone by one by 15 and one by 30, one by 16 by itself."""
    shifted = np.empty_like(values)
    for factor in (_SECOND_INVERSE, _FIRST_INVERSE):
        np.right_shift(values, np.uint32(15), out=shifted)
        shifted ^= np.right_shift(shifted, np.uint32(15))
        values ^= shifted
        if factor == _FIRST_INVERSE and keys is not None:
            values ^= keys
        values *= np.uint32(factor)
    values ^= np.right_shift(values, np.uint32(16), out=shifted)
    return values


def _splitmix64(value: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014) on `value`."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
