"""How many messages went to each engine: an engine that has read fewer of them for long is stuck.

Written by whoever sends, under the client's lock or in its loop; read by the supervisor's thread, which may be late by
a message or two.
"""

from __future__ import annotations

from muro.ids import EngineRank, Generation
from muro.wire.frames import Frame, identity_of


class Traffic:
    """Counts for the present generation of each rank."""

    def __init__(self) -> None:
        self._sent: dict[Frame, int] = {}
        self._generations: dict[EngineRank, Generation] = {}

    def message_sent(self, identity: Frame) -> None:
        """A message has left for the engine with this identity."""
        self._sent[identity] = self._sent.get(identity, 0) + 1

    def succeeded(self, rank: EngineRank, generation: Generation) -> None:
        """From now on messages go to a successor."""
        self._sent[identity_of(rank)] = 0  # before the generation: its reader must not take the old count for the new
        self._generations[rank] = generation

    def sent(self, rank: EngineRank, generation: Generation) -> int:
        """Messages that this engine was sent; 0 if it is not the one that messages go to."""
        if self._generations.get(rank, 0) != generation:
            return 0
        return self._sent.get(identity_of(rank), 0)
