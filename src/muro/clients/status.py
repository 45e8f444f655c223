"""How the engines of a client are, put together from its session and its link. Asks no engine anything."""

from __future__ import annotations

import time
from typing import Protocol

from muro.clients.engine import KnownEngine
from muro.clients.interface import EngineStatus
from muro.clients.session import Session
from muro.errors import EngineDeadError
from muro.ids import EngineRank
from muro.launch.rank import RankStatus


class Watched(Protocol):
    """Who knows the engines' processes; see `link.Link`."""

    def supervised(self, rank: EngineRank) -> RankStatus | None: ...

    def last_report_age(self, rank: EngineRank) -> float | None: ...

    def dying(self) -> dict[EngineRank, EngineDeadError]: ...


def engine_statuses(session: Session, watched: Watched) -> list[EngineStatus]:
    """One status per rank. Who has died is dead, though what it sent before may still be read."""
    statuses = []
    dying = watched.dying()
    for rank, engine in session.engines.items():
        process = watched.supervised(rank)
        state, error = _state(engine, dying.get(rank))
        statuses.append(
            EngineStatus(
                rank=rank,
                generation=engine.generation,
                state=state,
                ready=engine.ready,
                pid=None if process is None else process.pid,
                progress=None if process is None else process.progress,
                in_flight=session.fleet.in_flight(rank),
                restarts=0 if process is None else process.generation,
                uptime=None if process is None else process.uptime,
                last_step_age=None if process is None else _age(process.progress.step_ended_ns),
                last_report_age=watched.last_report_age(rank),
                error=error,
            )
        )
    return statuses


def _state(engine: KnownEngine, dying: EngineDeadError | None) -> tuple[str, str]:
    """The state in a word, and what it died of."""
    if dying is not None and engine.serving:
        return "restarting" if dying.restarting else "dead", dying.message
    error = "" if engine.error is None else engine.error.message
    if engine.serving and engine.leaving:
        return "leaving", error
    return "restarting" if engine.restarting else engine.state.value, error


def _age(since_ns: int) -> float | None:
    """Seconds since a moment of CLOCK_MONOTONIC; None for never."""
    return (time.monotonic_ns() - since_ns) / 1e9 if since_ns else None
