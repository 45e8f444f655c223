"""Adding up the numbers of all servers when one of them is asked for them. In the parent's loop.

Whoever asks gets the numbers of all as they are now. What a server that has gone had told before still counts, so that
no counter goes back. A server that does not answer in time counts with what it told last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muro.crew.words import Count, ToServer, Total
from muro.observe.metrics import Numbers

PATIENCE = 1.0
"""Seconds that servers get to answer."""


class Counting:
    """The numbers of so many servers.

    Args:
        say: sends a word to a server; whether there is one.
    """

    def __init__(self, say: Callable[[int, ToServer], bool]) -> None:
        self._say = say
        self._latest: dict[int, Numbers] = {}
        self._gone = Numbers()
        self._missing: set[int] = set()
        """Who was asked and has not answered."""
        self._waiting: list[tuple[int, int]] = []
        self._timer: asyncio.TimerHandle | None = None

    def count_all(self, index: int, call: int, serving: set[int]) -> None:
        """A server wants the numbers of all those that serve, under the number of its call."""
        self._waiting.append((index, call))
        asked = {other for other in serving if other not in self._missing and self._say(other, Count())}
        self._missing |= asked
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._answer)
        if not self._missing:
            self._answer()

    def counted(self, index: int, numbers: Numbers) -> None:
        """A server has told its numbers."""
        self._latest[index] = numbers
        self._no_longer_missing(index)

    def ended(self, index: int) -> None:
        """A server has gone."""
        if (numbers := self._latest.pop(index, None)) is not None:
            self._gone.add(numbers.remains())
        self._no_longer_missing(index)

    def close(self) -> None:
        """Answer nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _no_longer_missing(self, index: int) -> None:
        self._missing.discard(index)
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        self.close()
        self._timer = None
        self._missing.clear()
        total = Numbers()
        for numbers in (self._gone, *self._latest.values()):
            total.add(numbers)
        waiting, self._waiting = self._waiting, []
        for index, call in waiting:
            self._say(index, Total(call, total))
