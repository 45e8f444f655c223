"""FC-02, FC-03: each kind of hang has the engine killed within the limit and a second. `pytest -s` shows the times."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from muro import EngineDeadError, SyncMPClient, connect
from muro.config import RestartPolicy
from muro.errors import CallTimeoutError
from muro.launch.events import EngineDied, EngineReplaced, EngineStalled
from tests.support.asking import FOREVER, ask, faulty
from tests.support.counts import count
from tests.support.deadline import until
from tests.support.stalls import LIMIT, SLACK, Witness, stalls_within

pytestmark = [pytest.mark.cases, pytest.mark.timeout(count(60, 120))]


def stop_process(client: SyncMPClient) -> None:
    pid = client.engines()[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)


def inject(fault: str) -> Callable[[SyncMPClient], None]:
    return lambda client: client.call("inject", fault)


def begin(request: Any) -> Callable[[SyncMPClient], None]:
    """Send a request that does the harm, and leave its outputs to `add_request`'s reader."""
    return lambda client: client.add_request(request)


HANGS: dict[str, tuple[Callable[[SyncMPClient], None], str]] = {
    "sleep": (inject("step:sleep=1000"), r"step \d+ has run for"),
    "native call that releases the lock": (inject("step:hang"), r"step \d+ has run for"),
    "native call that holds the lock": (inject("step:hang_lock"), r"step \d+ has run for"),
    "livelock": (inject("step:spin"), r"step \d+ has run for"),
    "steps without output": (inject("step:barren"), r"\d requests run, but nothing has come out of them for"),
    "SIGSTOP": (stop_process, r".*the process (has been|is) stopped \(SIGSTOP\)"),
    "a new request": (begin(faulty("bad", "add:hang")), "handling 'a new request' has taken"),
    "preprocessing": (begin(faulty("bad", "preprocess:hang")), "the input thread has worked on one message for"),
    "an output": (begin(faulty("bad", "output:hang")), r"step \d+ has run for"),
}
"""What is done to an engine that works on requests, and what must be said of it."""


@pytest.mark.parametrize("kind", HANGS)
def test_fc02_fc03_a_working_engine_that_hangs(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    harm, words = HANGS[kind]
    with connect(engine="faulty", options={"step_ms": 5}, stall_limit=LIMIT) as client:
        witness = Witness(client)
        for number in range(3):
            client.add_request(ask(f"r{number}", FOREVER))
        read_for(client, 0.2)
        harm(client)
        began = time.monotonic()
        with pytest.raises(EngineDeadError, match=f"stuck: {words}") as caught:
            read_for(client, LIMIT + 10)
        told = time.monotonic() - began
    check(kind, witness, began, told)
    assert caught.value.exit_status == -signal.SIGKILL
    dumped = [r.getMessage() for r in caplog.records if "its threads stood here" in r.getMessage()]
    if kind == "SIGSTOP":
        assert not dumped, "a stopped process writes nothing"
    else:
        (text,) = dumped
        assert "most recent call first" in text and "muro/process/loop.py" in text and "receiver.py" in text


def read_for(client: SyncMPClient, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        client.get_outputs(timeout=left)


def check(kind: str, witness: Witness, began: float, told: float) -> None:
    ((at, event),) = until(lambda: witness.of(EngineStalled))
    took = at - began
    print(f"\n{kind}: limit {LIMIT} s, verdict after {took:.2f} s, callers told after {told:.2f} s: {event.words}")
    assert took <= LIMIT + SLACK and told <= LIMIT + SLACK + 1
    # The last progress may lie before the harm, but not by more than it takes to look at it.
    assert took >= LIMIT - 0.5
    ((_, death),) = until(lambda: witness.of(EngineDied))
    assert event.words in death.error.message


def test_an_operation_that_hangs() -> None:
    with connect(engine="faulty", stall_limit=LIMIT) as client:
        witness = Witness(client)
        began = time.monotonic()
        with pytest.raises(EngineDeadError, match="stuck: handling 'call inject' has taken"):
            client.call("inject", "operation:hang")
        check("operation", witness, began, time.monotonic() - began)


def test_an_idle_engine_whose_lock_is_seized_and_who_is_asked_for_something() -> None:
    with connect(engine="faulty", stall_limit=LIMIT) as client:
        witness = Witness(client)
        client.call("inject", "operation:seize")
        until(lambda: answers_no_more(client))
        began = time.monotonic()
        # Usually nothing was under way when the lock was seized; on a busy machine something may have been.
        seen = (
            r"\d messages were sent to it, and it has read none|\d messages wait|handling|the input thread has worked"
        )
        with pytest.raises(EngineDeadError, match=f"stuck: ({seen})"):
            next(client.generate(ask("a")))
        check("lock seized by another thread", witness, began, time.monotonic() - began)


def answers_no_more(client: SyncMPClient) -> bool:
    try:
        client.call("num_live", timeout=0.3)
    except CallTimeoutError:
        return True
    return False


def test_an_idle_engine_that_is_stopped() -> None:
    with connect(engine="faulty", stall_limit=LIMIT) as client:
        witness = Witness(client)
        stop_process(client)
        began = time.monotonic()
        until(lambda: witness.of(EngineDied), within=LIMIT + 5)
        check("SIGSTOP while idle", witness, began, 0)
        with pytest.raises(EngineDeadError, match="SIGSTOP"):
            client.check_health()


def test_an_engine_that_hangs_while_it_ends_by_itself() -> None:
    with connect(engine="faulty", options={"fault": "shutdown:hang"}, stall_limit=LIMIT) as client:
        witness = Witness(client)
        pid = client.engines()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)  # somebody else asks it to stop
        began = time.monotonic()
        until(lambda: witness.of(EngineDied), within=LIMIT + 5)
        check("end", witness, began, 0)


def test_a_hanging_engine_is_replaced_and_requests_go_on() -> None:
    policy = RestartPolicy(policy="on-failure")
    with connect(engine="faulty", stall_limit=LIMIT, restart=policy) as client:
        witness = Witness(client)
        client.call("inject", "step:hang_lock")
        with pytest.raises(EngineDeadError, match="stuck: step 1 has run for") as caught:
            next(client.generate(ask("a")))
        assert caught.value.restarting
        client.wait_serving(30)
        assert sum(len(output.new_token_ids) for output in client.generate(ask("b"))) == 3
        ((_, replaced),) = witness.of(EngineReplaced)
        assert replaced.generation == 1
        # The successor is judged by what it was sent itself: idle, it is not stuck.
        assert not stalls_within(LIMIT + SLACK, witness, stalls=1)


@pytest.fixture(autouse=True)
def errors_are_about_stuck_engines(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    errors = [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR]
    assert all("is stuck" in error or "has died" in error for error in errors), errors
