"""What an event of the engines, or the coordinator's news, mean to a client: to its session, and to the way to them."""

from __future__ import annotations

from typing import Protocol

from muro.clients.session import Session
from muro.ids import EngineRank
from muro.launch.events import (
    EngineAdded,
    EngineDied,
    EngineGivenUp,
    EngineLeft,
    EngineReplaced,
    EngineUnborn,
    Event,
)
from muro.wire.coordination import Publication


class Way(Protocol):
    """Where messages go; see `link.Link`."""

    def adopt(self, event: EngineReplaced | EngineAdded) -> None: ...

    def forget(self, rank: EngineRank) -> None: ...

    def heard(self, news: Publication) -> None: ...


def hear(event: Event, session: Session, way: Way) -> None:
    """Take an event in, under the client's lock or in its loop; those that change nothing are ignored."""
    match event:
        case EngineDied():
            session.died(event.rank, event.generation, event.error)
        case EngineReplaced():
            session.succeeded(event.rank, event.generation, event.ready)
            way.adopt(event)
        case EngineGivenUp():
            session.given_up(event.rank, event.error)
        case EngineAdded():
            session.fleet.add(event.rank, event.generation, event.ready)
            way.adopt(event)
        case EngineLeft():
            session.fleet.remove(event.rank)
            way.forget(event.rank)
        case EngineUnborn():
            if session.scaling is not None:
                session.scaling.unborn(event.rank, event.generation, event.error)


def hear_coordinator(news: Publication, session: Session, way: Way, now: float) -> None:
    """Take in the coordinator's news, under the client's lock or in its loop; `now` as for `Session.add`."""
    way.heard(news)
    session.wave = news.wave
    if news.counts is not None:
        session.reported(news.counts, now)
