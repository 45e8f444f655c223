"""`muro serve` with Ray where no cluster is: one is started for it on this machine, and is gone with it."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import descendants
from tests.support.server import Server

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: make ray"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    flags = ["--engine", "sim", "-dp", "2", "--data-parallel-backend", "ray", "--ray-resources", '{"CPU": 0.5}']
    with Server(*flags, "--log-level", "INFO") as server:
        yield server
    shutil.rmtree(Path(tempfile.gettempdir(), "ray"), ignore_errors=True)  # its logs


def test_it_serves_and_one_signal_ends_it_all(server: Server) -> None:
    server.ready(within=120)
    body = {"model": "sim", "prompt": "abc", "max_tokens": 8}
    with server.http() as http:
        for _ in range(4):
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 8
        engines = http.get("/health").json()["engines"]
        assert [engine["state"] for engine in engines] == ["serving", "serving"]
    commands = " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(server.process.pid))
    assert "raylet" in commands and "run_engine_core" in commands and "secret" not in commands
    server.signal(signal.SIGTERM)
    assert server.exit_code(within=30) == 0, server.errors()
    assert "stopped" in server.output()
    assert server.errors().count("runs on ") == 2
