"""The load of all ranks as the coordinator knows it, and when front-ends are told (protocol section 15.3). Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from muro.ids import EngineRank
from muro.wire.frames import MAX_RANK
from muro.wire.stats import SchedulerStats

PUBLISH_WITHIN: Final = 0.1
"""Seconds between a change and its publication, at most."""
PUBLISH_AT_LEAST: Final = 5.0
"""Seconds between two publications when nothing changes."""
SETTLE: Final = 0.05
"""Seconds that the other lockstep ranks get to report the step that one has reported."""


class _Load(msgspec.Struct):
    """Requests of one rank, and the use of its KV cache, 0 ... 1."""

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0


class LoadBoard:
    """The latest report of every rank.

    Args:
        size: number of ranks.
        lockstep: whether they step together, so that their reports come in bundles.
        with_kv_usage: whether front-ends read triples (0.27 and later) or pairs.
        now: seconds; a first publication is due then.
    """

    def __init__(self, size: int, *, lockstep: bool = False, with_kv_usage: bool = True, now: float = 0.0) -> None:
        self._loads = [_Load() for _ in range(size)]
        self._lockstep = lockstep
        self._with_kv_usage = with_kv_usage
        self._changed_at: float | None = None
        self._published_at = now - PUBLISH_AT_LEAST
        self._step = (-1, -1)
        self._step_at = now - SETTLE

    @property
    def size(self) -> int:
        return len(self._loads)

    def resize(self, size: int, now: float) -> bool:
        """There are more ranks now, or fewer; False if there cannot be so many."""
        if not 1 <= size <= MAX_RANK + 1:
            return False
        self._loads = self._loads[:size] + [_Load() for _ in range(size - self.size)]
        self._changes(now)
        return True

    def report(self, rank: EngineRank | int, stats: SchedulerStats, now: float) -> bool:
        """A rank's report; False if there is no such rank, or it makes no sense."""
        if not 0 <= rank < self.size or min(stats.num_waiting_reqs, stats.num_running_reqs) < 0:
            return False
        load = _Load(stats.num_waiting_reqs, stats.num_running_reqs, stats.kv_cache_usage)
        step = (stats.current_wave, stats.step_counter)
        if self._lockstep and step > self._step:
            self._step, self._step_at = step, now
        if load != self._loads[rank]:
            self._loads[rank] = load
            self._changes(now)
        return True

    def lost(self, rank: EngineRank | int, now: float) -> None:
        """A rank has ended and holds nothing any more."""
        if 0 <= rank < self.size:
            self._loads[rank] = _Load()
            self._changes(now)

    def due(self) -> float:
        """When the next publication is to be made."""
        if self._changed_at is None:
            return self._published_at + PUBLISH_AT_LEAST
        rest = self._published_at + PUBLISH_WITHIN
        if self._lockstep:  # never later than promised, however fast the steps follow each other
            rest = max(rest, min(self._step_at + SETTLE, self._changed_at + PUBLISH_WITHIN))
        return max(rest, self._changed_at)

    def publish(self, now: float) -> list[list[int | float]]:
        """The counts to publish now."""
        self._changed_at, self._published_at = None, now
        if self._with_kv_usage:
            return [[load.waiting, load.running, load.kv_usage] for load in self._loads]
        return [[load.waiting, load.running] for load in self._loads]

    def _changes(self, now: float) -> None:
        if self._changed_at is None:
            self._changed_at = now
