"""A client's end, however it comes, leaves nothing; and whole programs that use one behave."""

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muro import AsyncMPClient, InprocClient, StartupError, SyncMPClient, connect, connect_async
from muro.config import ConnectConfig, EngineConfig
from muro.errors import ConfigError
from tests.support.asking import FOREVER, ask
from tests.support.counts import FULL, count
from tests.support.deadline import process_ended

ENDS = ["close", "context", "del", "circle", "fails"]


def pid_of(client: SyncMPClient | AsyncMPClient) -> int:
    pid = client.engines()[0].pid
    assert pid is not None
    return pid


def dispose(how: str) -> int | None:
    """Make a client with a stream under way and end it; the process that it had."""
    if how == "fails":
        with pytest.raises(StartupError):
            connect(engine="faulty", options={"fault": "construct:raise"})
        return None
    client = connect(engine="faulty", options={"step_ms": 1})
    pid = pid_of(client)
    stream = client.generate(ask("a", FOREVER))
    next(stream)
    match how:
        case "close":
            client.close()
            client.close()
        case "context":
            with client:
                pass
        case "circle":
            circle = [client, stream]
            circle.append(circle)
    return pid


@pytest.mark.cases
@pytest.mark.timeout(180 if FULL else 60)
@pytest.mark.parametrize("how", ENDS)
def test_fc19_clients_come_and_go(how: str) -> None:
    for _ in range(count(2, 20)):
        pid = dispose(how)
        if how == "circle":
            gc.collect()
        if pid is not None:
            process_ended(pid, within=0.5)


@pytest.mark.cases
@pytest.mark.parametrize("how", ["aclose", "context", "del", "close"])
def test_fc19_asyncio_clients_come_and_go(how: str) -> None:
    async def main() -> int:
        client = await connect_async(engine="faulty", options={"step_ms": 1})
        pid = pid_of(client)
        stream = client.generate(ask("a", FOREVER))
        await anext(stream)
        match how:
            case "aclose":
                await client.aclose()
                await client.aclose()
            case "context":
                async with client:
                    pass
            case "close":
                client.close()
        return pid

    for _ in range(count(2, 20)):
        pid = asyncio.run(main())
        process_ended(pid, within=0.5)


def test_a_lost_asyncio_client_frees_its_loop() -> None:
    async def main() -> None:
        client = await connect_async(engine="echo")
        pid = pid_of(client)
        del client
        process_ended(pid, within=0.5)
        async with await connect_async(engine="echo") as other:  # its descriptors have the same numbers
            assert [t async for o in other.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]

    asyncio.run(main())


def test_an_engine_in_this_process_is_shut_down_once() -> None:
    ended = []

    class Engine:
        pass

    client = InprocClient.create("faulty", options={"fault": "shutdown:sleep=0.001"})
    local = client._link
    shutdown = local._engine.shutdown  # type: ignore[attr-defined]
    local._engine.shutdown = lambda: (ended.append(1), shutdown())  # type: ignore[attr-defined]
    client.close()
    client.close()
    del client, Engine
    assert ended == [1]


@pytest.mark.parametrize("hung", ["step:hang", "step:hang_lock"])
def test_closing_is_bounded_when_the_engine_hangs(hung: str) -> None:
    client = connect(engine="faulty", options={"fault": hung})
    client.generate(ask("a"))
    began = time.monotonic()
    client.close(timeout=0.3)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_over_tcp(host: str) -> None:
    with connect(engine="echo", host=host) as client:
        assert [t for o in client.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]


def test_several_engines_as_one_client() -> None:
    with connect(engine="faulty", num_engines=2) as client:
        streams = [client.generate(ask(f"r{n}", 5, [n])) for n in range(10)]
        assert [[t for o in s for t in o.new_token_ids] for s in streams] == [[n] * 5 for n in range(10)]
        assert client.call_all("num_live") == {0: 0, 1: 0}
        pinned = ask("pinned", FOREVER)
        pinned.data_parallel_rank = 1
        stream = client.generate(pinned)
        next(stream)
        assert [status.in_flight for status in client.engines()] == [0, 1]
        assert client.call("num_live", engine=1) == 1


def test_settings_are_checked_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="engine"):
        connect(engine="main:Nothing", host="0.0.0.0")
    with pytest.raises(ConfigError):
        connect(ConnectConfig(engine=EngineConfig(engine="echo"), socket_dir="/proc"))


SCRIPT = """
import signal, sys, threading
from muro import EngineCoreRequest, SamplingParams, connect
print("main runs", flush=True)
client = connect(engine="faulty", options={"step_ms": 1})
def ask(n): return EngineCoreRequest("a", [1], sampling_params=SamplingParams(max_tokens=n))
print(len(list(client.generate(ask(3)))), client.engines()[0].pid, flush=True)
stream = client.generate(ask(50000))
next(stream)
"""
ENDINGS = {
    "falls off": ("", 0),
    "with": ("with client: pass", 0),
    "exit": ("sys.exit(3)", 3),
    "error": ("raise ValueError('mine')", 1),
    "ctrl-c": ("signal.raise_signal(signal.SIGINT)", -2),
    "thread": ("t = threading.Thread(target=lambda: list(client.generate(ask(2)) if False else [])); t.start()", 0),
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    def run(source: str, how: str = "file") -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(source)
        arguments = {"file": [str(path)], "stdin": ["-"], "-c": ["-c", source]}[how]
        text = source if how == "stdin" else None
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            input=text,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


@pytest.mark.cases
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.timeout(600 if FULL else 60)
def test_fc28_fc32_programs_end_quietly_with_their_own_status(run: Callable, ending: str) -> None:
    last, status = ENDINGS[ending]
    for _ in range(count(1, 100)):
        began = time.monotonic()
        ended = run(SCRIPT + last)
        assert ended.returncode == status
        assert "muro" not in ended.stderr.replace("muro_", "") or ending in ("error", "ctrl-c")
        assert ended.stderr.count("Traceback") == (ending in ("error", "ctrl-c"))
        assert time.monotonic() - began < 6  # the start of two interpreters included
        process_ended(int(ended.stdout.split()[-1]), within=0.5)


@pytest.mark.cases
@pytest.mark.parametrize("how", ["file", "stdin", "-c"])
def test_fc49_no_main_guard_is_needed(run: Callable, how: str) -> None:
    ended = run(SCRIPT + "client.close()", how)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("main runs") == 1 and ended.stderr == ""


@pytest.mark.cases
@pytest.mark.timeout(300 if FULL else 60)
def test_fc51_from_a_parent_with_busy_threads() -> None:
    stop = threading.Event()
    log = logging.getLogger("test.busy")

    def keep_busy() -> None:
        while not stop.wait(0.001):
            log.debug("busy")
            with contextlib.suppress(ImportError):
                __import__("muro.nothing")

    threads = [threading.Thread(target=keep_busy) for _ in range(20)]
    for thread in threads:
        thread.start()
    try:
        with InprocClient.create("echo") as beside:
            for _ in range(count(3, 50)):
                with connect(engine="echo") as client:
                    assert len(list(client.generate(ask("a")))) == 3
                assert len(list(beside.generate(ask("a")))) == 3
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_callers_environment_stays_as_it_is() -> None:
    before = dict(os.environ)
    with connect(engine="echo", env={"MURO_TEST_ONLY": "1"}):
        assert dict(os.environ) == before
