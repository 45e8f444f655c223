"""generation.py: a choice is not opened before the first one of its prompt has told of the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.llm.outputs import Piece
from muro.server.routes.generation import Pieces, _prompts_first


class Source:
    """Pieces in a given order, of so many prompts and choices."""

    def __init__(self, order: list[int], prompts: int, choices: int) -> None:
        self.generation = self
        self.prompts = [[1]] * prompts
        self.choices = [None] * choices
        self._order = order

    async def __aiter__(self) -> AsyncIterator[Piece]:
        for number, index in enumerate(self._order):
            yield Piece(index, str(number), [])


def ordered(order: list[int], prompts: int, choices: int) -> list[Piece]:
    async def run() -> list[Piece]:
        source: Any = Source(order, prompts, choices)
        return [piece async for piece in _prompts_first(cast(Pieces, source))]

    return asyncio.run(run())


@pytest.mark.parametrize(("order", "expected"), [([1, 0, 1], "102"), ([3, 1, 2, 0], "2031"), ([0, 1, 2, 3], "0123")])
def test_those_that_are_early_wait(order: list[int], expected: str) -> None:
    assert "".join(piece.text for piece in ordered(order, 2, 4)) == expected


@given(st.lists(st.integers(0, 5), max_size=20))
def test_nothing_is_lost_or_overtaken(order: list[int]) -> None:
    order = [*order, 0, 3]
    pieces = ordered(order, 2, 6)
    assert sorted(int(piece.text) for piece in pieces) == list(range(len(order)))
    begun: set[int] = set()
    for index in range(6):
        numbers = [int(piece.text) for piece in pieces if piece.index == index]
        assert numbers == sorted(numbers)
    for piece in pieces:
        assert piece.index - piece.index % 3 in begun or piece.index % 3 == 0
        begun.add(piece.index)
