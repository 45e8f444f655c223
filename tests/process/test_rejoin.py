"""Engines that dial in, and front-ends that go: the engine ends within seconds, or stays and serves the next one."""

import os
import signal
import subprocess
import time

import pytest

from muro import connect
from muro.wire.failure import ExitCode
from tests.support.asking import ask
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port, front_end_elsewhere
from tests.support.programs import line

SECONDS = 6.0
"""By then either side has noticed that the other one has gone."""


def leave(front_end: "subprocess.Popen[str]", how: str) -> None:
    match how:
        case "closed":
            assert front_end.stdin is not None
            front_end.stdin.write("\n")
            front_end.stdin.flush()
        case "killed":
            os.kill(front_end.pid, signal.SIGKILL)
        case "stopped":
            os.kill(front_end.pid, signal.SIGSTOP)


@pytest.mark.parametrize("how", ["closed", "killed", "stopped"])
def test_an_engine_ends_with_its_front_end(how: str) -> None:
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    with front_end_elsewhere(PORT_HOST, port) as front_end, engine_elsewhere(address) as engine:
        assert line(front_end) == "serving"
        leave(front_end, how)
        began = time.monotonic()
        assert engine.wait(20) == ExitCode.LOST_PARENT
        took = time.monotonic() - began
        print(f"\nfront-end {how}: the engine has ended after {took:.2f} s")
        assert took < SECONDS
        assert engine.stderr is not None
        told = engine.stderr.read()
        assert "is lost: its connection has ended" in told and "--rejoin" in told and "Traceback" not in told


@pytest.mark.parametrize("how", ["closed", "killed", "stopped"])
def test_with_rejoin_it_serves_the_next_one(how: str) -> None:
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    with engine_elsewhere(address, rejoin=True) as engine:
        with front_end_elsewhere(PORT_HOST, port) as first:
            assert line(first) == "serving"
            leave(first, how)
            if how == "stopped":
                assert engine.stderr is not None
                until(lambda: "is lost" in (engine.stderr.readline() or ""))  # type: ignore[union-attr]
        began = time.monotonic()
        with connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client:
            took = time.monotonic() - began
            print(f"\nfront-end {how}: the next one is served {took:.2f} s after it has begun to listen")
            assert took < SECONDS
            assert [t for o in client.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]
            assert client.call("num_live") == 0, "the requests of the front-end that has gone are dropped"
        assert engine.poll() is None
        with connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client:
            assert [t for o in client.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(10) == ExitCode.STOPPED
