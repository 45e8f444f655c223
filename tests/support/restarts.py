"""Clients whose engines are restarted, and engines whose starts go as a test says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from muro.config import ConnectConfig, EngineConfig, RestartPolicy

MOODY = "tests.support.moody:MoodyEngine"
PATIENT = RestartPolicy(policy="on-failure", backoff_first=0.02, backoff_max=0.05, budget=10_000)


def settings(restart: RestartPolicy = PATIENT, engine: str = "faulty", **more: Any) -> ConnectConfig:
    """Of a client; the engine steps every 2 ms."""
    options = more.pop("options", {"step_ms": 2} if engine == "faulty" else {})
    return ConnectConfig(engine=EngineConfig(engine=engine, options=options), restart=restart, **more)


def moody(directory: Path, *moods: str, restart: RestartPolicy = PATIENT) -> ConnectConfig:
    """Of a client whose engine's starts go as said; see `moody`."""
    path = directory / "moods"
    path.write_text("\n".join(moods))
    return settings(restart, MOODY, options={"moods": str(path)})


def children() -> set[int]:
    """Processes that are children of this one."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return found
