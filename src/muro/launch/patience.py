"""How long to wait for engines that are starting. Pure: time is an argument.

The rule: an engine that shows no progress for `timeout` seconds is given up, whatever the others do; one that
goes on showing progress is never cut. Progress is any change of what is seen of it: its step in the
handshake, the phase and per cent on its progress page. Each change is returned, so that every extension can be
told to people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from muro.ids import EngineRank


class Sight(msgspec.Struct, frozen=True):
    """What is seen of an engine that is not ready yet."""

    waiting_for: str
    """The next step of the handshake, in people's words."""
    phase: str = ""
    """What it says it is doing; empty for an engine that was started elsewhere."""
    percent: float = 0.0

    def __str__(self) -> str:
        phase = f"phase {self.phase!r}, {self.percent:.0f} %; " if self.phase else ""
        return f"{phase}handshake: {self.waiting_for}"


class Patience:
    """Keeps, for each awaited engine, what was seen of it last and when that changed.

    Args:
        ranks: the engines to wait for.
        timeout: seconds without progress after which an engine is given up.
        now: the present time, on the clock of all other calls.
    """

    def __init__(self, ranks: Iterable[EngineRank], timeout: float, now: float) -> None:
        self._timeout = timeout
        self._moved: dict[EngineRank, float] = dict.fromkeys(ranks, now)
        self._seen: dict[EngineRank, Sight] = {}

    def look(self, sights: Mapping[EngineRank, Sight], now: float) -> list[EngineRank]:
        """Take in what is seen now; gives the engines that have moved. Those not in sight have arrived."""
        moved = [rank for rank, sight in sights.items() if self._seen.get(rank) != sight]
        self._moved = {rank: now if rank in moved else since for rank, since in self._moved.items() if rank in sights}
        self._seen = dict(sights)
        return moved

    def overdue(self, now: float) -> EngineRank | None:
        """The engine that must be given up, the longest silent first; None if there is still hope for all."""
        if not self._moved:
            return None
        rank = min(self._moved, key=self._moved.__getitem__)
        return rank if now - self._moved[rank] >= self._timeout else None

    def remaining(self, now: float) -> float:
        """Seconds until the first engine will be given up if nothing moves."""
        return max(0.0, min(self._moved.values(), default=now) + self._timeout - now)
