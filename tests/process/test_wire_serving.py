"""A tap in the midst of real front-ends and engines: everything works as without it, and is in the recording."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from muro import EngineDeadError, connect
from muro.probe.reading import Kind
from muro.wire.failure import ExitCode
from tests.support.asking import FOREVER, ask, faulty
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port
from tests.support.programs import run
from tests.support.server import Server
from tests.support.taps import Tapped, recorded, tapped

MARK = 1_234_567_891


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def tap(port: int, tmp_path: Path) -> Iterator[Tapped]:
    with tapped(f"tcp://{PORT_HOST}:{port}", tmp_path / "rec") as tap:
        yield tap


def test_requests_calls_and_the_end(port: int, tap: Tapped, tmp_path: Path) -> None:
    with engine_elsewhere(tap.address) as engine:
        with connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client:
            assert [t for o in client.generate(ask("a", 5)) for t in o.new_token_ids] == [7, 8, 9, 7, 8]
            assert client.call("num_live") == 0
            stream = client.generate(ask("b", FOREVER))
            next(stream)
            stream.close()
            until(lambda: client.call("num_live") == 0, what="the abort has arrived")
        assert engine.wait(10) == ExitCode.LOST_PARENT
    report = tap.end()
    assert "engine 0 dials" in report and re.search(r"recorded \d+ records", report)
    kinds = [message.kind for message in recorded(tmp_path / "rec")]
    for kind in (Kind.ADD, Kind.ABORT, Kind.CALL, Kind.ANSWER, Kind.OUTPUTS, Kind.EVENT):
        assert kind in kinds, kind
    assert Kind.UNKNOWN not in kinds


def test_prompts_are_not_in_the_file(port: int, tap: Tapped, tmp_path: Path) -> None:
    with (
        engine_elsewhere(tap.address),
        connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client,
    ):
        asked = ask("a", 4, [MARK], stop=["xylophone"], extra_args={"note": "xylophone"})
        assert [t for o in client.generate(asked) for t in o.new_token_ids] == [MARK] * 4
    tap.end()
    data = (tmp_path / "rec").read_bytes()
    assert b"xylophone" not in data and MARK.to_bytes(4, "big") not in data and MARK.to_bytes(4, "little") not in data
    shown = run(["-m", "muro", "wire", "show", str(tmp_path / "rec"), "--kind", "add"]).out
    assert "prompt 1 tokens" in shown and "max_tokens=4" in shown and "withheld: prompt_token_ids" in shown


def test_a_death_is_announced_through_it(port: int, tap: Tapped) -> None:
    with (
        engine_elsewhere(tap.address),
        connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client,
        pytest.raises(EngineDeadError, match="announced"),
    ):
        list(client.generate(faulty("killer", "step:raise", FOREVER)))


def test_a_killed_engine_is_missed_through_it(port: int, tap: Tapped) -> None:
    with (
        engine_elsewhere(tap.address) as engine,
        connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client,
    ):
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="its connection has ended"):
            list(stream)


def test_an_engine_that_rejoins_finds_the_next_front_end(port: int, tap: Tapped) -> None:
    with engine_elsewhere(tap.address, rejoin=True) as engine:
        for _ in range(3):
            with connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client:
                assert [t for o in client.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(10) == ExitCode.STOPPED
    assert tap.end().count("engine 0 dials") >= 3


def test_a_server_and_its_engines(port: int, tap: Tapped, tmp_path: Path) -> None:
    count = 16
    there = ("--data-parallel-rpc-port", str(port), "-dp", "2", "-dpl", "0")
    headless = ("-m", "muro", "serve", "--engine", "sim", "--headless", "-dpp", str(tap.port))
    with ThreadPoolExecutor(2) as engines, Server("--engine", "sim", *there) as server:
        ends = [engines.submit(run, [*headless, "--data-parallel-start-rank", str(rank)]) for rank in range(2)]
        server.ready()

        def complete(number: int) -> int:
            body = {"prompt": f"say {number}", "max_tokens": 8, "ignore_eos": True}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).json()
            return int(answer["usage"]["completion_tokens"])

        with ThreadPoolExecutor(count) as callers:
            assert list(callers.map(complete, range(count))) == [8] * count
        server.process.terminate()
        assert server.exit_code() == 0
        assert [end.result().code for end in ends] == [ExitCode.LOST_PARENT] * 2
    tap.end()
    messages = recorded(tmp_path / "rec")
    assert sum(message.kind is Kind.ADD for message in messages) == count
    assert {message.record.peer for message in messages if message.kind is Kind.ADD} == {b"\0\0", b"\1\0"}
    assert not [message.fault for message in messages if message.fault]
    done = run(["-m", "muro", "wire", "show", str(tmp_path / "rec"), "--json", "--full"])
    assert done.code == 0 and len(list(map(json.loads, done.out.splitlines()))) == len(messages)
