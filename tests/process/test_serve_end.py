"""How a server ends: its engine dies, somebody asks it to, a start that fails. Real processes, exit codes, signals."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from muro.errors import ConfigError
from muro.server.lifespan import bind
from tests.support.deadline import process_ended, until
from tests.support.elsewhere import free_port
from tests.support.programs import environment
from tests.support.server import Server

PACED = ("--engine", "paced", "--engine-option", "step_ms=20")
ENDLESS = {"prompt": "abc", "max_tokens": 100_000}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def stream(server: Server, started: threading.Event | None = None, **body: Any) -> list[str]:
    """All data of a streamed answer."""
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=30) as answer:
        found = []
        for line in answer.iter_lines():
            if line:
                found.append(line.removeprefix("data: "))
                if started is not None:
                    started.set()
        return found


def running_stream(server: Server, pool: ThreadPoolExecutor, **body: Any) -> Future[list[str]]:
    """A stream that has begun."""
    started = threading.Event()
    future = pool.submit(stream, server, started, **body)
    assert started.wait(10)
    return future


@pytest.mark.cases
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_dead_engine_is_told_and_ends_the_server(how: signal.Signals, pool: ThreadPoolExecutor) -> None:
    """FC-01, FC-04, FC-27: while streaming, waiting and idle connections are there."""
    with Server(*PACED, "--restart", "never") as server:
        server.ready()
        streamed = running_stream(server, pool, **ENDLESS)
        whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=ENDLESS, timeout=30)
        until(lambda: server.metric("vllm:num_requests_running") == 2)
        os.kill(server.engine_pid, how)
        died = time.monotonic()
        *_, last, done = streamed.result(2)
        assert done == "[DONE]"
        assert json.loads(last)["error"]["code"] == "engine_dead"
        assert how.name in json.loads(last)["error"]["message"]
        assert (whole.result(2).status_code, whole.result().json()["error"]["code"]) == (503, "engine_dead")
        assert server.status() == 503
        assert httpx.post(f"{server.url}/v1/completions", json=ENDLESS).status_code == 503
        assert time.monotonic() - died < 2
        assert server.exit_code(5) == 10
        assert time.monotonic() - died < 5
        assert how.name in server.errors()
        assert "Traceback" not in server.errors()


@pytest.mark.cases
def test_a_dead_engine_of_an_idle_server(pool: ThreadPoolExecutor) -> None:
    """FC-01, FC-27: nobody has to ask for it to be noticed."""
    with Server("--engine", "echo", "--restart", "never") as server:
        server.ready()
        os.kill(server.engine_pid, signal.SIGKILL)
        until(lambda: server.status() == 503, within=2)
        assert server.exit_code(5) == 10


@pytest.mark.cases
def test_of_several_the_last_death_is_told() -> None:
    with Server("--engine", "echo", "--restart", "never", "--data-parallel-size", "2") as server:
        server.ready()
        first, second = (engine["pid"] for engine in httpx.get(f"{server.url}/health").json()["engines"])
        os.kill(first, signal.SIGKILL)
        until(lambda: "the other engines go on" in server.errors())
        os.kill(second, signal.SIGKILL)
        assert server.exit_code(10) == 10
        *_, last = server.errors().splitlines()
        assert "engine 1 (echo) has died" in last and last.endswith("no engine serves any more")


@pytest.mark.cases
def test_a_stop_right_after_a_death_is_no_clean_end() -> None:
    """FC-27: restart policies look at the exit status."""
    with Server("--engine", "echo", "--restart", "never") as server:
        server.ready()
        os.kill(server.engine_pid, signal.SIGKILL)
        server.signal(signal.SIGTERM)
        assert server.exit_code(5) == 10


@pytest.mark.cases
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_asked_to_stop_with_nothing_to_do(number: signal.Signals) -> None:
    """FC-28: exit 0, quickly, and not a word of an error."""
    with Server("--engine", "echo") as server:
        server.ready()
        said, engine = server.errors(), server.engine_pid
        began = time.monotonic()
        server.signal(number)
        assert server.exit_code(3) == 0
        assert time.monotonic() - began < 3
        assert server.errors() == said
        process_ended(engine, within=0.5)


def test_without_patience_running_requests_end_with_abort(pool: ThreadPoolExecutor) -> None:
    with Server(*PACED) as server:
        server.ready()
        whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=ENDLESS, timeout=30)
        until(lambda: server.metric("vllm:generation_tokens_total") >= 3)
        streamed = running_stream(server, pool, **ENDLESS, n=2)
        server.signal(signal.SIGTERM)
        assert [json.loads(data)["choices"][0]["finish_reason"] for data in streamed.result(5)[-3:-1]] == ["abort"] * 2
        answer = whole.result(5)
        assert (answer.status_code, answer.json()["choices"][0]["finish_reason"]) == (200, "abort")
        assert answer.json()["choices"][0]["text"].startswith("abc")
        assert server.exit_code(5) == 0
        assert "Traceback" not in server.errors()


@pytest.mark.cases
def test_with_patience_running_requests_end_by_themselves(pool: ThreadPoolExecutor) -> None:
    """FC-31 in small: all tokens arrive, new requests get 503 with a hint, health turns bad at once."""
    with Server(*PACED, "--shutdown-timeout", "20") as server:
        server.ready()
        streamed = running_stream(server, pool, prompt="abc", max_tokens=100)
        with server.http() as kept:
            assert kept.get("/health").status_code == 200
            server.signal(signal.SIGTERM)
            until(lambda: server.status() == 503)
            for refused in (
                kept.post("/v1/completions", json=ENDLESS),
                httpx.post(f"{server.url}/v1/completions", json=ENDLESS),
            ):
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
        pieces = [json.loads(data)["choices"][0] for data in streamed.result(10)[:-1]]
        assert "".join(piece["text"] for piece in pieces) == ("abc" * 34)[:100]
        assert pieces[-1]["finish_reason"] == "length"
        assert server.exit_code(5) == 0


@pytest.mark.parametrize("way", ["limit", "second signal"])
def test_patience_ends(way: str, pool: ThreadPoolExecutor) -> None:
    with Server(*PACED, "--shutdown-timeout", "0.5" if way == "limit" else "100") as server:
        server.ready()
        streamed = running_stream(server, pool, **ENDLESS)
        server.signal(signal.SIGTERM)
        if way == "second signal":
            until(lambda: server.status() == 503)
            server.signal(signal.SIGTERM)
        assert json.loads(streamed.result(5)[-2])["choices"][0]["finish_reason"] == "abort"
        assert server.exit_code(5) == 0


def test_further_signals_cut_nothing_short() -> None:
    with Server(*PACED) as server:
        server.ready()
        engine = server.engine_pid
        for _ in range(2):
            server.signal(signal.SIGTERM)
            server.signal(signal.SIGINT)
        assert server.exit_code(5) == 0
        process_ended(engine, within=0.5)
        assert "Traceback" not in server.errors()


@pytest.mark.cases
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopped_while_it_starts(number: signal.Signals) -> None:
    """FC-30: the tree is gone and the status says that somebody asked for it."""
    with Server("--engine", "faulty", "--engine-option", "fault=loading:hang") as server:
        until(lambda: "weights" in server.errors(), within=20)
        engine = server.engine_pid
        server.signal(number)
        assert server.exit_code(5) == 0
        process_ended(engine, within=0.5)
        assert "Traceback" not in server.errors()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--engine", "faulty", "--engine-option", "fault=loading:exit=7"), 11, "exit code 7"),
        (("--engine", "faulty", "--engine-option", "fault=loading:signal=SIGSEGV"), 11, "SIGSEGV"),
        (("--engine", "faulty", "--engine-option", "nonsense=1"), 2, "no option nonsense"),
        (("--engine", "no_such_module:Engine"), 2, "no module 'no_such_module'"),
        (("/no/such/model",), 2, "muro pull demo"),
        ((), 2, "an engine that needs none, such as echo"),
        (("--engine", "echo", "--tensor-parallel-size", "2"), 2, "--tensor-parallel-size"),
        (("--engine", "echo", "--log-level", "LOUD"), 2, "LOUD"),
        (("--engine", "echo", "--host", "no.such.host.invalid"), 2, "no.such.host.invalid"),
        (("--engine", "echo", "--max-model-len", "2000000"), 2, "1048576"),
    ],
)
def test_a_start_that_fails_says_why(arguments: tuple[str, ...], code: int, words: str) -> None:
    with Server(*arguments) as server:
        assert server.exit_code(20) == code
        assert words in server.errors().replace("\n", " ")
        assert "Traceback" not in server.errors()


def test_a_taken_port_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with Server("--engine", "faulty", "--engine-option", "fault=loading:hang", "--port", port) as server:
            assert server.exit_code(10) == 2
            assert f"port {port}" in server.errors()


def test_a_server_whose_standard_streams_are_closed() -> None:
    """As some who start daemons leave them: no socket may come in the place of one, and be printed into."""
    port = free_port("127.0.0.1")
    ours = [sys.executable, "-m", "muro", "serve", "--engine", "echo", "--port", str(port)]
    server = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *ours], env=environment())

    def serves() -> bool:
        assert server.poll() is None
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        return False

    try:
        until(serves, within=30)
        assert [os.readlink(f"/proc/{server.pid}/fd/{number}") for number in range(3)] == [os.devnull] * 3
    finally:
        server.terminate()
        assert server.wait(20) == 0


@pytest.mark.cases
def test_an_idle_server_is_idle() -> None:
    """FC-45: front-end and engine together use less than 2 % of a core."""

    def cpu_seconds(pid: int) -> float:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with Server("--engine", "echo") as server:
        server.ready()
        assert server.status() == 200
        pids = (server.process.pid, server.engine_pid)
        before = [cpu_seconds(pid) for pid in pids]
        threading.Event().wait(3)
        used = [cpu_seconds(pid) - b for pid, b in zip(pids, before, strict=True)]
        assert max(used) < 3 * 0.02


def test_an_address_of_another_machine_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match=r"cannot serve on 192\.0\.2\.1 port 0: .*; another address: --host"):
        bind("192.0.2.1", 0)  # an address for documentation: RFC 5737
