"""Watch engines that are up: each death becomes an event, with its cause.

What follows from a death is decided by whoever takes the events. The policy of now is never to restart.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muro.errors import EngineDeadError
from muro.ids import EngineRank, Generation
from muro.launch.spawn import Child


class EngineDied(msgspec.Struct, frozen=True):
    """An engine has ended although nobody had asked it to; `error` is for everybody who waits for it."""

    rank: EngineRank
    generation: Generation
    error: EngineDeadError


class Supervisor:
    """Tells of each death once. Not for several threads at a time.

    Args:
        children: the engines that were started here, by rank; they stay their owner's, who closes them.
    """

    def __init__(self, children: Mapping[EngineRank, Child]) -> None:
        self._children = dict(children)
        self._living = dict(children)

    def sentinels(self) -> dict[EngineRank, int]:
        """Descriptors to poll for reading, one for each engine that was not reported dead yet."""
        return {rank: child.sentinel for rank, child in self._living.items()}

    def collect(self) -> list[EngineDied]:
        """The deaths since the last call; does not wait."""
        died = []
        for rank, child in list(self._living.items()):
            if child.poll() is not None:
                del self._living[rank]
                died.append(EngineDied(rank, self.generation(rank), self.dead_error(rank)))
        return died

    def generation(self, rank: EngineRank) -> Generation:
        """How often the engine of a rank has been replaced: never, so far."""
        return Generation(0)

    def dead_error(self, rank: EngineRank) -> EngineDeadError:
        """What to tell of an engine that has died, or has announced that it is dying."""
        return self._children[rank].death().dead_error(rank, self.generation(rank))
