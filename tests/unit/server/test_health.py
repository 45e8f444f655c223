"""health.py: what is said of an engine."""

from __future__ import annotations

import pytest

from muro.clients.interface import EngineStatus
from muro.errors import LOG_FOLLOWS
from muro.ids import EngineRank
from muro.server.health import engine_health
from muro.wire.progress import Progress


@pytest.mark.parametrize(
    ("state", "phase", "page", "said"),
    [
        ("restarting", "loading: weights", 40.0, 40.0),
        ("serving", "serving", 0.0, 100.0),
        ("serving", "paused", 0.0, 100.0),
    ],
)
def test_percent_is_that_of_loading(state: str, phase: str, page: float, said: float) -> None:
    status = EngineStatus(rank=EngineRank(0), state=state, progress=Progress(phase=phase, percent=page))
    health = engine_health(status, 0)
    assert (health.phase, health.percent) == (phase, said)


def test_of_an_engine_that_was_started_elsewhere_there_is_no_percent() -> None:
    health = engine_health(EngineStatus(rank=EngineRank(0), state="serving"), 0)
    assert (health.phase, health.percent) == (None, None)


def test_log_lines_of_a_dead_engine_are_not_shown() -> None:
    status = EngineStatus(rank=EngineRank(0), state="dead", error=f"it has died{LOG_FOLLOWS}\nsecret")
    assert engine_health(status, 0).error == "it has died. Its last lines are in the server's log"
