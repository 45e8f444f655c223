"""`muro serve` while its engine dies and is started again: it answers throughout, and ends when there is no hope."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.counts import FULL, count
from tests.support.deadline import process_ended, until
from tests.support.server import Server

ASKED = {"prompt": "hello", "max_tokens": 4}
ENDLESS = {"prompt": "hello", "max_tokens": 100_000, "stream": True}
PATIENT = ("--restart-budget", "10000/60", "--restart-backoff", "0.02/0.1")

pytestmark = pytest.mark.cases


def engine(server: Server) -> dict[str, Any]:
    found = httpx.get(f"{server.url}/health", timeout=5).json()["engines"][0]
    assert isinstance(found, dict)
    return found


def kill_engine(server: Server) -> int:
    pid = engine(server)["pid"]
    os.kill(pid, signal.SIGKILL)
    return int(pid)


class Visitors:
    """Open a connection for each of their requests, all the time; and count what comes of it."""

    def __init__(self, url: str, path: str) -> None:
        self._address = url.removeprefix("http://")
        self._path = path
        self._over = threading.Event()
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0
        self._threads = [threading.Thread(target=self._run) for _ in range(3)]

    def __enter__(self) -> Visitors:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            began = time.monotonic()
            try:
                self.seen[str(self._visit())] += 1
            except (OSError, HTTPException) as error:
                self.seen[type(error).__name__] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def _visit(self) -> int:
        connection = HTTPConnection(self._address, timeout=10)
        try:
            connection.request("GET", self._path)
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.mark.timeout(600 if FULL else 120)
def test_http_never_refuses_a_connection() -> None:
    """FC-01: streams end with an error event, everybody else is answered, and the next requests are served."""
    with Server("--engine", "paced", *PATIENT) as server, ThreadPoolExecutor(8) as pool:
        server.ready()
        with Visitors(server.url, "/livez") as alive, Visitors(server.url, "/health") as healthy:
            for generation in range(count(4, 60)):
                assert engine(server)["generation"] == generation
                started = [threading.Event() for _ in range(8)]
                streams = [pool.submit(stream_to_the_end, server, event) for event in started]
                assert all(event.wait(20) for event in started)
                kill_engine(server)
                for ended in streams:
                    assert ended.result(5) == "engine_dead"
                served = httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=30)
                assert served.status_code == 200, served.text
        print(f"\n/livez {dict(alive.seen)}, slowest {alive.slowest * 1000:.0f} ms; /health {dict(healthy.seen)}")
        assert set(alive.seen) == {"200"}
        assert set(healthy.seen) == {"200", "503"}


def stream_to_the_end(server: Server, started: threading.Event) -> str:
    """The code of the error with which a stream ends."""
    last = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=ENDLESS, timeout=30) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                started.set()
                last = line
    return "engine_dead" if '"engine_dead"' in last and "it is being restarted" in last else last


def test_without_patience_new_requests_get_503_and_when_to_come_again() -> None:
    with Server("--engine", "echo", "--restart-wait", "0", "--restart-backoff", "1.5/10") as server:
        server.ready()
        pid = kill_engine(server)
        until(lambda: engine(server)["state"] == "restarting")
        refused = httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=5)
        assert refused.status_code == 503 and 2 <= int(refused.headers["retry-after"]) <= 10
        assert refused.json()["error"]["code"] == "engine_dead" and "SIGKILL" in refused.json()["error"]["message"]
        assert server.status("/health") == 503 and server.status("/livez") == 200
        until(lambda: server.status("/health") == 200, within=20)
        assert engine(server)["pid"] != pid
        assert httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=5).status_code == 200


def test_whoever_waits_too_long_gets_503() -> None:
    with Server("--engine", "echo", "--restart-wait", "0.3", "--restart-backoff", "30/30") as server:
        server.ready()
        kill_engine(server)
        until(lambda: engine(server)["state"] == "restarting")
        began = time.monotonic()
        refused = httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=5)
        assert 0.3 <= time.monotonic() - began < 3
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_dead"


def test_a_crash_loop_ends_the_server_with_a_code_of_its_own() -> None:
    with Server("--engine", "echo", "--restart-budget", "2/60", "--restart-backoff", "0.01/0.1") as server:
        server.ready()
        for generation in range(3):
            until(lambda g=generation: engine(server)["generation"] == g and engine(server)["state"] == "serving")
            kill_engine(server)
        assert server.exit_code(20) == 13
        said = server.errors()
        assert said.count("is started again: generation") == 2
        assert said.count("it has died 3 times within 60 s; the restart budget is exhausted") == 1
        assert "no engine is left, and none is started again; the server ends" in said
        assert "Traceback" not in said


def test_a_successor_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    moods = tmp_path / "moods"
    moods.write_text("\n".join(["fine", *["raise"] * 9]))
    options = ("--engine", "tests.support.moody:MoodyEngine", "--engine-option", f"moods={moods}")
    with Server(*options, "--restart-budget", "2/60", "--restart-backoff", "0.01/0.1") as server:
        server.ready()
        kill_engine(server)
        assert server.exit_code(30) == 13
        assert "not in the mood" in server.errors()


def test_a_death_that_is_no_failure_ends_the_server_and_is_told_once() -> None:
    with Server("--engine", "sim", "--fault", "idle:exit=0@time=0.5") as server:
        assert server.exit_code(20) == 10
        said = server.errors()
        assert said.count("it left with exit code 0") == 1
        assert "it is not started again: its exit code is 0, which is no failure" in said
        assert "no engine is left, and none is started again; the server ends" in said


def test_stacks_of_a_stuck_engine_are_told_once() -> None:
    with Server("--engine", "sim", "--fault", "hang@times=1", "--stall-limit", "1") as server:
        server.ready()
        assert httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=20).status_code == 503
        until(lambda: engine(server)["generation"] == 1)
        said = server.errors()
        assert said.count("its threads stood here") == 1 and "it was stuck: step" in said
        assert said.count("in _deadlock") == said.count("in run_engine_core") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("backoff", ["60/60", "0/0"])
def test_a_stop_while_the_engine_is_restarted_is_an_orderly_end(
    number: signal.Signals, backoff: str, tmp_path: Path
) -> None:
    moods = tmp_path / "moods"
    moods.write_text("fine\nhang")
    options = ("--engine", "tests.support.moody:MoodyEngine", "--engine-option", f"moods={moods}")
    with Server(*options, "--restart-backoff", backoff) as server:
        server.ready()
        pid = kill_engine(server)
        until(lambda: engine(server)["state"] == "restarting")
        if backoff == "0/0":
            until(lambda: engine(server)["phase"].startswith("loading"), within=20)
        began = time.monotonic()
        server.signal(number)
        assert server.exit_code(10) == 0
        assert time.monotonic() - began < 5
        process_ended(pid, within=0.1)


def test_flags_that_make_no_sense() -> None:
    for flag, text, told in (
        ("--restart-backoff", "soon", "0.1/10 works"),
        ("--restart-backoff", "5/1", "must lie in 0 ... backoff_max"),
        ("--restart-budget", "5", "5/300 works"),
        ("--restart-budget", "-1/60", "makes no sense"),
    ):
        with Server("--engine", "echo", flag, text) as server:
            assert server.exit_code(20) == 2
            assert told in server.errors()
    with Server("--engine", "echo", "--on-engine-death", "replay", "--restart", "never") as server:
        assert server.exit_code(20) == 2
        assert "goes on with a new engine, and --restart never starts none" in server.errors()
