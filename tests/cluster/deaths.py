"""Story: what is seen of engines on Ray that are killed, hang, or lose their hosts; and what they log."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from muro import EngineDeadError, SyncMPClient, connect
from muro.config import ConnectConfig, EngineConfig, RayConfig, RestartPolicy
from tests.cluster.nodes import RANK, alive, host_of, kill, main, two_nodes
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until


def death_of(client: SyncMPClient, *, fault: str = "", host: bool = False) -> dict[str, Any]:
    """Let the engine of rank 0 die under a stream, and wait for its successor."""
    status = client.engines()[0]
    assert status.pid is not None
    owner = host_of(status.pid)
    stream = client.generate(ask("long", FOREVER))
    next(stream)
    if fault:
        with contextlib.suppress(EngineDeadError):
            client.call("inject", fault)
    else:
        kill(owner if host else status.pid)
    try:
        list(stream)
        told = "nothing"
    except EngineDeadError as error:
        told = error.message
    until(lambda: client.engines()[0].state == "serving", within=60)
    tokens = [token for output in client.generate(ask("after")) for token in output.new_token_ids]
    found = {"told": told, "after": tokens, "generation": client.engines()[0].generation}
    until(lambda: not alive(status.pid or 0) and not alive(owner), within=10)
    return found


class Kept(logging.Handler):
    """Keeps what is logged here."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.processName} {record.name}: {record.getMessage()}")


def story() -> dict[str, Any]:
    kept = Kept()
    logging.getLogger().addHandler(kept)
    settings = ConnectConfig(
        ray=RayConfig(resources=RANK),
        num_engines=1,
        engine=EngineConfig(engine="tests.cluster.engines:chatty", options={"step_ms": 2}),
        restart=RestartPolicy(policy="on-failure"),
        startup_timeout=60,
        stall_limit=3,
    )
    with two_nodes():
        with connect(settings) as client:
            facts: dict[str, Any] = {
                "killed": death_of(client),
                "hung": death_of(client, fault="step:hang_lock"),
                "host": death_of(client, host=True),
            }
            pids = [status.pid or 0 for status in client.engines()]
        facts["left"] = [pid for pid in pids if alive(pid)]
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(connect(_too_much(settings)))
                facts["too much"] = "started"
            except Exception as error:
                facts["too much"] = f"{type(error).__name__}: {error}"
    return facts | {"log": kept.lines, "environment": dict(os.environ).get("RAY_USAGE_STATS_ENABLED")}


def _too_much(settings: ConnectConfig) -> ConnectConfig:
    """More than the cluster has."""
    return ConnectConfig(
        ray=RayConfig(resources={"GPU": 8}), engine=settings.engine, startup_timeout=2, restart=settings.restart
    )


if __name__ == "__main__":
    main(story)
