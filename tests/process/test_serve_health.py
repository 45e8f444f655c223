"""How the server says that it and its engines are: to machines that start, stop and route."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.deadline import until
from tests.support.server import Server

LONG = {"prompt": "abc", "max_tokens": 6000, "stream": True}


def health(server: Server, query: str = "") -> tuple[int, dict[str, Any]]:
    answer = httpx.get(f"{server.url}/health{query}", timeout=20)
    return answer.status_code, answer.json()


@contextmanager
def streams(server: Server, count: int) -> Iterator[None]:
    """So many streams run; their callers leave at the end."""
    with httpx.Client(timeout=60) as client:
        held = [client.stream("POST", f"{server.url}/v1/completions", json=LONG) for _ in range(count)]
        try:
            reading = [context.__enter__().iter_lines() for context in held]
            for lines in reading:
                next(lines)
            yield
        finally:
            for context in held:
                context.__exit__(None, None, None)


def test_the_state_of_an_engine() -> None:
    with Server("--engine", "sim") as server:
        server.ready()
        status, found = health(server)
        (engine,) = found["engines"]
        assert (status, found["status"], found["queue"]) == (200, "ok", {"requests": 0, "tokens": 0})
        expected = {"rank": 0, "state": "serving", "pid": server.engine_pid, "generation": 0, "restarts": 0}
        assert {name: engine[name] for name in expected} == expected
        assert engine["phase"] == "serving"
        assert 0 <= engine["uptime"] < 60
        assert engine["last_step_age"] is None
        with streams(server, 3):
            until(lambda: health(server)[1]["engines"][0]["running"] == 3)
            (engine,) = health(server)[1]["engines"]
            assert engine["in_flight"] == 3
            assert engine["steps"] > 0
            assert engine["last_step_age"] < 5
        until(lambda: health(server)[1]["engines"][0]["running"] == 0)


def test_a_probe_makes_a_token_and_leaves_nothing() -> None:
    with Server("--engine", "sim") as server:
        server.ready()
        status, found = health(server, "?deep=1")
        assert (status, [probed["result"] for probed in found["deep"]]) == (200, ["token"])
        with ThreadPoolExecutor(20) as pool:
            before = found["engines"][0]["steps"]
            answers = list(pool.map(lambda _: health(server, "?deep=1"), range(20)))
        assert all(status == 200 and found["deep"][0]["result"] == "token" for status, found in answers)
        after = health(server)[1]["engines"][0]
        assert after["in_flight"] == after["running"] == 0
        assert 1 <= after["steps"] - before < 20, "those who ask at the same time share a probe"
        assert server.metric("vllm:generation_tokens_total") == 0
        assert "deep" not in health(server, "?deep=0")[1]


def test_a_busy_engine_is_not_taken_for_a_stuck_one() -> None:
    """FC-05: all places are taken for longer than a probe waits."""
    with Server("--engine", "sim", "--max-num-seqs", "2") as server:
        server.ready()
        with streams(server, 2):
            status, found = health(server, "?deep=1")
            assert (status, found["deep"][0]["result"]) == (200, "busy")
        until(lambda: health(server)[1]["engines"][0]["in_flight"] == 0)


def test_a_stopped_engine_fails_the_probe() -> None:
    with Server("--engine", "sim") as server:
        server.ready()
        engine = server.engine_pid
        os.kill(engine, signal.SIGSTOP)
        try:
            began = time.monotonic()
            status, found = health(server, "?deep=1")
            assert (status, found["deep"][0]["result"]) == (503, "failed")
            assert 4 < time.monotonic() - began < 15
            assert health(server)[0] == 200, "what is known without asking is still good"
        finally:
            os.kill(engine, signal.SIGCONT)
        until(lambda: health(server)[1]["engines"][0]["in_flight"] == 0)
        assert health(server, "?deep=1")[0] == 200


def test_live_is_not_ready_while_it_drains() -> None:
    with Server("--engine", "sim", "--shutdown-timeout", "30") as server:
        server.ready()
        with streams(server, 1):
            server.signal(signal.SIGTERM)
            until(lambda: server.status("/readyz") == 503)
            assert server.status("/livez") == 200
            status, found = health(server)
            assert (status, found["status"]) == (503, "unavailable")
            assert "shutting down" in found["reason"]
            assert found["engines"][0]["running"] == 1
            assert "shutting down" in httpx.get(f"{server.url}/readyz").text
        assert server.exit_code(10) == 0
