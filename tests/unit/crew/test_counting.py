"""The numbers of all servers, whoever answers, is late, or has gone."""

from __future__ import annotations

import asyncio

import pytest

from muro.crew import counting
from muro.crew.counting import Counting
from muro.crew.words import Count, ToServer, Total
from muro.observe.metrics import Numbers
from tests.support.deadline import until_async


class Wires:
    """Where words to servers go."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: list[tuple[int, int, float]] = []
        """Server, call, what it is told."""
        self.deaf: set[int] = set()

    def say(self, index: int, word: ToServer) -> bool:
        if isinstance(word, Count) and index not in self.deaf:
            self.asked.append(index)
        elif isinstance(word, Total):
            self.told.append((index, word.call, word.numbers.counters.get("n", 0)))
        return index not in self.deaf


def numbers(count: float) -> Numbers:
    return Numbers(counters={"n": count}, gauges={"g": count})


def test_all_are_asked_and_whoever_asked_is_told_once() -> None:
    async def main() -> None:
        wires = Wires()
        counts = Counting(wires.say)
        counts.count_all(0, 7, {0, 1})
        counts.counted(0, numbers(3))
        assert wires.asked == [0, 1] and not wires.told
        counts.counted(1, numbers(4))
        assert wires.told == [(0, 7, 7)]
        counts.counted(1, numbers(5))
        assert len(wires.told) == 1
        counts.close()

    asyncio.run(main())


def test_who_asks_meanwhile_gets_the_same_answer_and_nobody_is_asked_twice() -> None:
    async def main() -> None:
        wires = Wires()
        counts = Counting(wires.say)
        counts.count_all(0, 1, {0, 1})
        counts.count_all(1, 9, {0, 1})
        assert wires.asked == [0, 1]
        counts.counted(0, numbers(1))
        counts.counted(1, numbers(2))
        assert wires.told == [(0, 1, 3), (1, 9, 3)]
        counts.close()

    asyncio.run(main())


def test_what_a_server_had_told_still_counts_when_it_has_gone() -> None:
    async def main() -> None:
        wires = Wires()
        counts = Counting(wires.say)
        counts.count_all(0, 1, {0, 1})
        counts.counted(0, numbers(1))
        counts.counted(1, numbers(20))
        for generation in range(3):
            counts.ended(1)
            counts.count_all(0, 2 + generation, {0, 1})
            counts.counted(0, numbers(1))
            counts.counted(1, numbers(20))
        assert [told[2] for told in wires.told] == [21, 41, 61, 81]
        counts.close()

    asyncio.run(main())


def test_the_end_of_a_server_that_was_waited_for_is_an_answer() -> None:
    async def main() -> None:
        wires = Wires()
        counts = Counting(wires.say)
        counts.count_all(0, 1, {0, 1})
        counts.counted(0, numbers(1))
        counts.ended(1)
        assert wires.told == [(0, 1, 1)]
        counts.close()

    asyncio.run(main())


def test_a_server_that_does_not_answer_counts_with_what_it_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PATIENCE", 0.01)

    async def main() -> None:
        wires = Wires()
        counts = Counting(wires.say)
        counts.counted(1, numbers(10))
        counts.count_all(0, 1, {0, 1})
        counts.counted(0, numbers(1))
        await until_async(lambda: wires.told)
        assert wires.told == [(0, 1, 11)]
        counts.close()

    asyncio.run(main())


def test_where_nobody_can_be_asked_there_is_an_answer_at_once() -> None:
    async def main() -> None:
        wires = Wires()
        wires.deaf = {1}
        counts = Counting(wires.say)
        counts.count_all(0, 1, {1})
        assert wires.told == [(0, 1, 0)]
        counts.close()

    asyncio.run(main())
