"""health.py: what is said of an engine."""

from __future__ import annotations

import os

import pytest

from muro.clients.interface import EngineStatus
from muro.crew.interface import ServerStatus
from muro.errors import LOG_FOLLOWS
from muro.ids import EngineRank
from muro.server.health import ServerHealth, engine_health, server_health
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


@pytest.mark.parametrize("state", ["dead", "restarting"])
def test_a_dead_engine_is_in_no_step_and_runs_nothing(state: str) -> None:
    page = Progress(phase="serving", steps_started=8, steps_ended=7, step_started_ns=1, running=3, waiting=1)
    health = engine_health(EngineStatus(rank=EngineRank(0), state=state, progress=page), 10**9)
    assert (health.phase, health.steps, health.step_age, health.running, health.waiting) == (
        "serving", 7, None, None, None,
    )  # fmt: skip
    assert engine_health(EngineStatus(rank=EngineRank(0), state="serving", progress=page), 10**9).running == 3


def test_of_an_engine_that_was_started_elsewhere_there_is_no_percent() -> None:
    health = engine_health(EngineStatus(rank=EngineRank(0), state="serving"), 0)
    assert (health.phase, health.percent) == (None, None)


def test_log_lines_of_a_dead_engine_are_not_shown() -> None:
    status = EngineStatus(rank=EngineRank(0), state="dead", error=f"it has died{LOG_FOLLOWS}\nsecret")
    assert engine_health(status, 0).error == "it has died. Its last lines are in the server's log"


def test_of_several_servers_each_is_told_and_who_answers() -> None:
    status = ServerStatus(index=1, state="serving", pid=os.getpid(), generation=2, since=10.0)
    other = ServerStatus(index=0, state="restarting", generation=1)
    assert server_health(status, 15 * 10**9) == ServerHealth(
        server=1, state="serving", pid=os.getpid(), generation=2, uptime=5.0, answering=True
    )
    assert server_health(other, 0) == ServerHealth(server=0, state="restarting", generation=1)
