"""How the engines of a client are, put together from its session and its link. Asks no engine anything."""

from __future__ import annotations

from typing import Protocol

from muro.clients.interface import EngineStatus
from muro.clients.session import Session
from muro.ids import EngineRank
from muro.launch.rank import RankStatus


class Watched(Protocol):
    """Who knows the engines' processes; see `link.Link`."""

    def supervised(self, rank: EngineRank) -> RankStatus | None: ...


def engine_statuses(session: Session, watched: Watched) -> list[EngineStatus]:
    """One status per rank."""
    statuses = []
    for rank, engine in session.engines.items():
        process = watched.supervised(rank)
        statuses.append(
            EngineStatus(
                rank=rank,
                generation=engine.generation,
                state="restarting" if engine.restarting else engine.state.value,
                ready=engine.ready,
                pid=None if process is None else process.pid,
                progress=None if process is None else process.progress,
                in_flight=engine.in_flight,
                restarts=0 if process is None else process.generation,
                uptime=None if process is None else process.uptime,
                error="" if engine.error is None else engine.error.message,
            )
        )
    return statuses
