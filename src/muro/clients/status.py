"""How the engines of a client are, put together from its session and its link. Asks no engine anything."""

from __future__ import annotations

from typing import Protocol

from muro.clients.interface import EngineStatus
from muro.clients.session import Session
from muro.ids import EngineRank
from muro.wire.progress import Progress


class Watched(Protocol):
    """Who knows the engines' processes; see `link.Link`."""

    def progress(self, rank: EngineRank) -> tuple[int | None, Progress | None]: ...


def engine_statuses(session: Session, watched: Watched) -> list[EngineStatus]:
    """One status per rank."""
    statuses = []
    for rank, engine in session.engines.items():
        pid, progress = watched.progress(rank)
        statuses.append(
            EngineStatus(
                rank=rank,
                generation=engine.generation,
                state=engine.state.value,
                ready=engine.ready,
                pid=pid,
                progress=progress,
                in_flight=engine.in_flight,
                error="" if engine.error is None else engine.error.message,
            )
        )
    return statuses
