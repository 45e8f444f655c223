"""Log-probabilities as callers read them: for each position a map from token id to `Logprob`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from muro.wire.output import Logprobs


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """What the model said of one token at one position, before temperature, penalties and filters."""

    logprob: float
    """Natural logarithm."""
    rank: int | None = None
    """How many tokens are as probable or more, from 1 for the most probable; None if nobody has counted."""
    decoded_token: str | None = None
    """Its text; part of a character shows as U+FFFD. None without a tokenizer's help."""


Position = dict[int, Logprob]
"""The token that came first, then the most probable ones in descending order, then those that were asked for."""

Spell = Callable[[int], str | None]
P = TypeVar("P")


def read_positions(logprobs: Logprobs, top: int, spell: Spell) -> list[Position]:
    """What an engine sent, position by position.

    Args:
        logprobs: see there.
        top: how many columns after the first hold the most probable tokens; -1 for all.
        spell: the text of a token.
    """
    ids, values, ranks = (part.numpy().tolist() for part in (logprobs.ids, logprobs.values, logprobs.ranks))
    positions: list[Position] = []
    for row, logs, first in zip(ids, values, ranks, strict=True):
        position = {row[0]: Logprob(logs[0], first, spell(row[0]))}
        for column, (token_id, value) in enumerate(zip(row[1:], logs[1:], strict=True), 1):
            if token_id not in position:
                rank = column if top == -1 or column <= top else None
                position[token_id] = Logprob(value, rank, spell(token_id))
        positions.append(position)
    return positions


def joined(before: list[P] | None, new: list[P] | None) -> list[P] | None:
    """Both in a new list; None if there are none of either."""
    return before if new is None else [*(before or ()), *new]


def cumulated(positions: list[Position]) -> float:
    """The sum over the tokens that came, each the first of its position."""
    return sum(next(iter(position.values())).logprob for position in positions)
