"""What is seen of the end of an engine that did not want to end."""

import os
import signal

import pytest

from tests.interop.vllm.test_cases import endless
from tests.interop.vllm.worlds import Kind, World, process_of
from tests.support.deadline import process_ended, until

pytestmark = pytest.mark.timeout(1800)


def ended_or_unwell(world: World) -> bool:
    return world.status() == 503 or world.front.poll() is not None


@pytest.mark.row("engine death, announced")
def test_an_engine_that_loses_its_worker(kind: Kind, doomed: World) -> None:
    """Its last message says that it is dead, and everybody hears of it."""
    if kind.model_is_ours:
        pytest.skip("our model engine computes in its own process: it has no worker to lose")
    worker = process_of(doomed.engine_pid(), "VLLM::Worker")
    with doomed.http() as http:
        going = endless(http)
        next(going)
        os.kill(worker, signal.SIGKILL)
        *_, last = going
        assert "error" in last
    until(lambda: ended_or_unwell(doomed), within=60, what="it is noticed")


@pytest.mark.row("engine death, killed")
def test_an_engine_that_is_killed(kind: Kind, doomed: World) -> None:
    pid = doomed.engine_pid()
    with doomed.http() as http:
        going = endless(http)
        next(going)
        os.kill(pid, signal.SIGKILL)
        process_ended(pid)
        if not kind.front_is_ours:
            assert doomed.status() == 200
            pytest.skip("vLLM's front-end does not notice the loss of an engine that it has not started")
        *_, last = going
        assert "error" in last
    until(lambda: ended_or_unwell(doomed), within=60, what="it is noticed")
