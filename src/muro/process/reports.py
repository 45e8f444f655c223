"""What an engine tells the coordinator of its load: whenever it has changed, and all again to a new coordinator."""

from __future__ import annotations

from collections.abc import Callable

from muro.engine.events import Routed
from muro.ids import COORDINATOR, EngineRank
from muro.wire.output import EngineCoreOutputs
from muro.wire.stats import SchedulerStats


class LoadReports:
    """Makes the reports of one rank (loop thread).

    Args:
        load: requests that run and wait now, and the use of the cache.
        clock: monotonic seconds, for time stamps.
    """

    def __init__(self, rank: EngineRank, load: Callable[[], SchedulerStats], clock: Callable[[], float]) -> None:
        self._rank = rank
        self._load = load
        self._clock = clock
        self._told: SchedulerStats | None = None

    def changed(self, wave: int = 0, step: int = 0) -> list[Routed]:
        """A report if there is news. Lockstep ranks say in which step of which wave."""
        load = self._load()
        if load == self._told:
            return []
        self._told = load
        stamped = SchedulerStats(
            load.num_running_reqs,
            load.num_waiting_reqs,
            step_counter=step,
            current_wave=wave,
            kv_cache_usage=load.kv_cache_usage,
        )
        message = EngineCoreOutputs(self._rank, scheduler_stats=stamped, timestamp=self._clock())
        return [Routed(COORDINATOR, message)]

    def anew(self, wave: int = 0, step: int = 0) -> list[Routed]:
        """A report in any case."""
        self._told = None
        return self.changed(wave, step)
