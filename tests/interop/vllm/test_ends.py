"""How each half of a pair ends, and what the other half, and the user, see of it."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from muro.wire.failure import ExitCode
from tests.interop.vllm.test_cases import endless
from tests.interop.vllm.worlds import Kind, World
from tests.support.deadline import process_ended, until

pytestmark = pytest.mark.timeout(900)


def started(http: httpx.Client) -> Iterator[Any]:
    going = endless(http)
    next(going)
    return going


@pytest.mark.row("engine death, killed")
def test_an_engine_that_is_killed(kind: Kind, doomed: World) -> None:
    pid = doomed.engine_pid()
    with doomed.http() as http:
        going = started(http)
        os.kill(pid, signal.SIGKILL)
        process_ended(pid)
        if not kind.front_is_ours:
            assert doomed.status() == 200
            pytest.skip("vLLM's front-end does not notice the loss of an engine that it has not started")
        *_, last = going
        assert "error" in last
    until(lambda: doomed.status() == 503 or doomed.front.poll() is not None, within=20, what="it is noticed")


@pytest.mark.row("engine shutdown")
def test_an_engine_that_is_asked_to_stop(kind: Kind, doomed: World) -> None:
    with doomed.http() as http:
        going = started(http)
        os.kill(doomed.engine.process.pid if doomed.engine else doomed.engine_pid(), signal.SIGTERM)
        *_, last = going
    assert last["choices"][0]["finish_reason"] == "abort" if "choices" in last else last["error"]
    if doomed.engine is not None:
        assert doomed.engine.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


@pytest.mark.row("front-end goes")
def test_a_front_end_that_goes(kind: Kind, doomed: World) -> None:
    pid = doomed.engine_pid()
    with doomed.http() as http:
        started(http)
        doomed.front.process.kill()
        doomed.front.wait()
        if doomed.engine is None:
            process_ended(pid, within=20)
        elif kind.engine_is_ours:
            assert doomed.engine.wait(20) == ExitCode.LOST_PARENT
        else:
            assert doomed.engine.poll() is None
            pytest.skip("vLLM's engine does not notice the loss of a front-end that has not started it")
