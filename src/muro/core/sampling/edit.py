"""Changing a row of logits before a token is drawn from it. The row itself is left as it was."""

from __future__ import annotations

import numpy as np

from muro.core.sampling.settings import History, Row
from muro.core.sampling.state import Draw, Occurrences

_INFINITY = np.uint32(0x7F800000)


def is_edited(draw: Draw) -> bool:
    """Whether `edit` would change anything."""
    return bool(draw.mask is not None or draw.banned or draw.occurrences is not None or draw.sampling.bias is not None)


def edit(row: Row, draw: Draw, out: Row) -> Row:
    """`row` as `draw` wants it, written to `out`: mask, bias, penalties, banned ids."""
    if draw.mask is None:
        # Not a copy: where both begin at the same place of a page, which rows do, that takes ten times as long.
        np.add(row, np.float32(0.0), out=out)
    else:
        bits = np.unpackbits(draw.mask.view(np.uint8), count=len(row), bitorder="little")
        # Plus infinity where a bit is set, else minus infinity, made from bits: a masked store is far slower.
        limits = bits.astype(np.uint32)
        limits ^= np.uint32(1)
        limits <<= np.uint32(31)
        limits |= _INFINITY
        np.minimum(row, limits.view(np.float32), out=out)
    sampling = draw.sampling
    if sampling.bias is not None:
        out[sampling.bias.ids] += sampling.bias.values
    if draw.occurrences is not None and sampling.history is not None:
        _penalise(out, draw.occurrences, sampling.history)
    for ids in draw.banned:
        out[ids] = -np.inf
    return out


def _penalise(row: Row, occurrences: Occurrences, history: History) -> None:
    """Scale what occurred away from probable, then lower it by what it cost in the output so far.

    Repetition: a positive logit is divided by the penalty, another one multiplied (Keskar et al. 2019, CTRL).
    Frequency and presence: as the OpenAI API defines them.
    """
    ids, counts = occurrences.ids, occurrences.counts
    scores = row[ids]
    if history.repetition_penalty != 1.0:
        factor = np.float32(history.repetition_penalty)
        scores = np.where(scores > 0, scores / factor, scores * factor)
    if history.frequency_penalty:
        scores -= counts * np.float32(history.frequency_penalty)
    if history.presence_penalty:
        scores -= (counts > 0) * np.float32(history.presence_penalty)
    row[ids] = scores
