"""Engines that were started elsewhere: they have no progress page, so they are judged by what is heard of them.

Whoever receives looks here: in the loop of the asyncio client, or by whoever of the other client's threads waits. So
only time in which somebody listened counts, and a caller that does something else makes no engine look silent.
Which verdict there is says `launch.watchdog.Silence`; this knows what an engine owes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from muro.clients.session import Session
from muro.errors import EngineDeadError
from muro.ids import EngineRank
from muro.launch.watchdog import OwnTime, Silence

TICK = 0.2
"""Seconds between two looks while something is owed."""


class SilentEngines:
    """Those of a client's engines that must be heard. For one thread at a time.

    Args:
        session: of the client; only read.
        ranks: the engines without a page.
        limit: seconds; see `Silence`.
        lost: takes an engine that is taken for dead.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        session: Session,
        ranks: Iterable[EngineRank],
        limit: float | None,
        lost: Callable[[EngineRank, EngineDeadError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._lost = lost
        self._limit = limit
        self._clock = clock
        self._watched = {rank: Silence(limit) for rank in ranks} if limit else {}
        self._heard = dict.fromkeys(self._watched, 0)
        self._own = OwnTime(TICK, clock())
        self._look_at = 0.0

    def __bool__(self) -> bool:
        """Whether there is anybody to watch."""
        return bool(self._watched)

    def heard(self, rank: int) -> None:
        """A message has come from an engine."""
        if rank in self._heard:
            self._heard[EngineRank(rank)] += 1

    def patience(self, timeout: float | None) -> float | None:
        """How long to wait for news at most before the next look, instead of `timeout` seconds (None: for ever)."""
        if not any(map(self._owed, self._watched)):
            return timeout
        return TICK if timeout is None else min(timeout, TICK)

    def look(self) -> None:
        """Judge everybody, if it is time for it; call it after each wait for news."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + TICK
        seconds = self._own.tick(now)
        for rank, silence in list(self._watched.items()):
            verdict = silence.look(self._heard[rank], self._owed(rank), seconds)
            if verdict is not None:
                self._watched[rank] = Silence(self._limit)  # for its successor
                words = f"engine {rank} (started elsewhere) is taken for dead: {verdict.words} (setting: stall_limit)"
                self._lost(rank, EngineDeadError(words, rank=rank))

    def _owed(self, rank: EngineRank) -> int:
        """Requests and calls that an engine has to do something about."""
        session = self._session
        engine = session.engines[rank]
        # A batch that waits to be taken may hold the last outputs of what seems to be in flight.
        if not engine.serving or rank in session.calls.paused or session.has_batches:
            return 0
        return session.fleet.in_flight(rank) + session.calls.num_waiting(rank)
