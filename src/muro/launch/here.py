"""Engines as children of this process, on this machine."""

from __future__ import annotations

from muro.ids import EngineRank
from muro.launch.plan import LaunchPlan
from muro.launch.spawn import Child, spawn


class SpawnHere:
    """A `handle.Spawner`."""

    def start(self, plan: LaunchPlan, rank: EngineRank) -> Child:
        return spawn(
            plan.target,
            plan.payload(rank),
            title=plan.title(rank),
            env=plan.env,
            name=plan.name(rank),
            generation=plan.local[rank].generation,
        )

    def close(self) -> None:
        """Nothing was needed."""
