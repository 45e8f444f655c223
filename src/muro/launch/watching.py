"""What the watchdog is shown of a child, and who is watched: the shell around `launch.watchdog`.

Each generation of a rank has a watchdog of its own. Used in the supervisor's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

from muro.ids import EngineRank, Generation
from muro.launch.spawn import Child
from muro.launch.stopped import is_stopped
from muro.launch.watchdog import Verdict, Watchdog

Sent = Callable[[EngineRank, Generation], int]
"""How many messages an engine was sent; 0 if nobody counts."""


class Watching:
    """Judges the engines that run; a `supervisor.Watch`.

    Args:
        limit: seconds for which an engine may owe something and do nothing; None or 0: for ever.
        sent: see `Sent`.
    """

    def __init__(self, limit: float | None, sent: Sent = lambda rank, generation: 0) -> None:
        self._limit = limit
        self._sent = sent
        self._dogs: dict[EngineRank, tuple[Generation, Watchdog]] = {}

    def __call__(self, rank: EngineRank, generation: Generation, child: Child, seconds: float) -> Verdict | None:
        """Look at one engine; `seconds` are counted by the caller (`watchdog.OwnTime`)."""
        if not self._limit:
            return None
        known, dog = self._dogs.get(rank) or (None, Watchdog(None))
        if known != generation:
            dog = Watchdog(self._limit)
            self._dogs[rank] = generation, dog
        # How much was sent is asked first: what is sent between the two looks must not seem to be ignored.
        sent = self._sent(rank, generation)
        return dog.look(child.progress(), seconds, stopped=is_stopped(child.pid), sent=sent)
