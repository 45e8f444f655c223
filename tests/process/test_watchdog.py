"""Engines that are stuck are told from those that are idle, busy or slow, and killed. `pytest -s` shows the times.

FC-02, FC-03, FC-05: each kind of hang gives a verdict within the limit and a second; nothing else gives one.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from muro import EngineDeadError, SyncMPClient, connect, connect_async
from muro.config import RestartPolicy
from muro.errors import CallTimeoutError
from muro.launch.events import EngineDied, EngineReplaced, EngineStalled, Event
from muro.launch.spawn import is_stopped
from muro.wire.ops import PAUSE_SCHEDULER, RESUME_SCHEDULER
from tests.support.asking import FOREVER, ask, faulty
from tests.support.counts import FULL, count
from tests.support.deadline import until

pytestmark = [pytest.mark.cases, pytest.mark.timeout(count(60, 1200))]

LIMIT = count(1, 5)
SLACK = 1.0
"""Seconds after the limit by which there must be a verdict."""


class Witness:
    """Notes the events of a client's supervisor, and when they came."""

    def __init__(self, client: SyncMPClient) -> None:
        self.heard: list[tuple[float, Event]] = []
        self.forget = client._link.supervisor.subscribe(lambda event: self.heard.append((time.monotonic(), event)))

    def of(self, kind: type[Event]) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.heard if isinstance(event, kind)]


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
    ((at, event),) = witness.of(EngineStalled)
    took = at - began
    print(f"\n{kind}: limit {LIMIT} s, verdict after {took:.2f} s, callers told after {told:.2f} s: {event.words}")
    assert took <= LIMIT + SLACK and told <= LIMIT + SLACK + 1
    # The last progress may lie before the harm, but not by more than it takes to look at it.
    assert took >= LIMIT - 0.5
    ((_, death),) = witness.of(EngineDied)
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
        with pytest.raises(EngineDeadError, match=r"stuck: 2 messages were sent to it, and it has read none"):
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
        assert not until_stalled_or(witness, LIMIT + SLACK, stalls=1)


def until_stalled_or(witness: Witness, seconds: float, stalls: int = 0) -> bool:
    """Whether there is one more verdict within `seconds`."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < end:
        if len(witness.of(EngineStalled)) > stalls:
            return True
        pause.wait(0.05)
    return False


# An engine that was started elsewhere has no page: it is judged by what is heard of it

ELSEWHERE = """
import sys
from muro.config import EngineConfig
from muro.process.main import run_headless
where = {"local": False, "headless": True, "handshake_address": sys.argv[1]}
sys.exit(run_headless(EngineConfig(engine="faulty", options={"step_ms": 5}, **where)))
"""


@contextlib.contextmanager
def engine_elsewhere() -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """An engine that dials in, and the settings with which it is waited for."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-c", ELSEWHERE, f"tcp://127.0.0.1:{port}"]
    engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield engine, {"host": "127.0.0.1", "handshake_port": port, "num_local_engines": 0, "stall_limit": LIMIT}
    finally:
        engine.kill()
        engine.wait()


@pytest.mark.parametrize("harm", ["step:hang_lock", "step:barren", "SIGSTOP"])
def test_an_engine_elsewhere_that_falls_silent(harm: str) -> None:
    with engine_elsewhere() as (engine, where), connect(**where) as client:
        witness = Witness(client)
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        if harm == "SIGSTOP":
            engine.send_signal(signal.SIGSTOP)
        else:
            client.call("inject", harm)
        began = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"started elsewhere.*nothing was heard of it for"):
            for _ in stream:
                pass
        took = time.monotonic() - began
        print(f"\nelsewhere, {harm}: limit {LIMIT} s, told after {took:.2f} s")
        assert LIMIT <= took <= LIMIT + SLACK
        assert [event.rank for _, event in witness.of(EngineDied)] == [0]


async def _elsewhere_async(harm: str) -> float:
    with engine_elsewhere() as (_, where):
        async with await connect_async(**where) as client:
            stream = client.generate(ask("a", FOREVER))
            await anext(stream)
            await client.call("inject", harm)
            threading.Event().wait(2 * LIMIT)  # a loop that is blocked hears nothing, and must judge nobody
            client.check_health()
            began = time.monotonic()
            with pytest.raises(EngineDeadError, match="started elsewhere"):
                async for _ in stream:
                    pass
            return time.monotonic() - began


def test_an_engine_elsewhere_that_falls_silent_for_asyncio() -> None:
    took = asyncio.run(_elsewhere_async("step:hang"))
    assert LIMIT - 0.6 <= took <= LIMIT + SLACK


def test_an_engine_elsewhere_that_is_idle_slow_or_paused() -> None:
    with engine_elsewhere() as (_, where), connect(**where) as client:
        witness = Witness(client)
        client.call("inject", f"step:sleep={0.7 * LIMIT}")
        stream = client.generate(ask("a", 100))
        next(stream)
        client.call(PAUSE_SCHEDULER, "keep", False)
        reader = threading.Thread(target=list, args=(stream,))
        reader.start()  # somebody listens all the time
        assert not until_stalled_or(witness, 2 * LIMIT)
        client.call(RESUME_SCHEDULER)
        reader.join(10)
        assert not reader.is_alive() and not witness.heard
        assert len(list(client.generate(ask("b")))) == 3


# No false alarms


def test_fc05_a_prefill_just_under_the_limit() -> None:
    """Full: sixty seconds under a limit of ninety."""
    limit, long = (90, 60.0) if FULL else (3, 2.4)
    with connect(engine="faulty", stall_limit=limit) as client:
        witness = Witness(client)
        client.call("inject", f"step:sleep={long}")
        assert sum(len(output.new_token_ids) for output in client.generate(ask("a"))) == 3
        client.call("inject", f"step:sleep={long}")
        stream = client.generate(ask("b", 50))
        assert sum(len(output.new_token_ids) for output in stream) == 50
        assert not witness.heard


def test_slow_steps_just_under_the_limit() -> None:
    steps = count(4, 12)
    with connect(engine="faulty", options={"step_ms": 800 * LIMIT}, stall_limit=LIMIT) as client:
        witness = Witness(client)
        assert len(list(client.generate(ask("a", steps)))) == steps
        assert not witness.heard


def test_idle() -> None:
    with connect(engine="faulty", stall_limit=LIMIT) as client:
        witness = Witness(client)
        assert len(list(client.generate(ask("a")))) == 3
        assert not until_stalled_or(witness, 3 * LIMIT)
        assert len(list(client.generate(ask("b")))) == 3


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
def test_a_pause(mode: str) -> None:
    with connect(engine="faulty", options={"step_ms": 5}, stall_limit=LIMIT) as client:
        witness = Witness(client)
        stream = client.generate(ask("a", 100))
        next(stream)
        client.call(PAUSE_SCHEDULER, mode, False)
        later = client.generate(ask("b"))
        assert not until_stalled_or(witness, 3 * LIMIT)
        client.call(RESUME_SCHEDULER)
        assert len(list(later)) == 3
        assert list(stream)[-1].finish_reason is not None
        assert not witness.heard


def test_a_reader_who_does_not_read() -> None:
    """Neither what it has not read nor what it goes on sending makes the engine look stuck."""
    with connect(engine="faulty", stall_limit=LIMIT) as client:
        witness = Witness(client)
        for number in range(50):
            client.add_request(ask(f"r{number}", 2000))
        assert not until_stalled_or(witness, 3 * LIMIT)
        client.abort([f"r{number}" for number in range(50)])


@pytest.mark.parametrize("restart", ["never", "on-failure"])
def test_a_start_that_takes_long_is_judged_by_its_own_patience(restart: str) -> None:
    options = {"fault": f"loading:sleep={2 * LIMIT}"}
    with connect(engine="faulty", options=options, stall_limit=LIMIT, restart=RestartPolicy(policy=restart)) as client:
        witness = Witness(client)
        if restart == "on-failure":
            pid = client.engines()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: witness.of(EngineReplaced), within=60)
        assert len(list(client.generate(ask("a")))) == 3
        assert not witness.of(EngineStalled)


def test_without_a_limit_nothing_is_stuck() -> None:
    with connect(engine="faulty", stall_limit=0) as client:
        witness = Witness(client)
        client.call("inject", "step:sleep=2")
        assert len(list(client.generate(ask("a")))) == 3
        assert not witness.heard


PROGRAM = """
import sys, threading
from muro import connect
from tests.support.asking import ask, FOREVER

client = connect(engine="faulty", options={"step_ms": 5}, stall_limit=float(sys.argv[1]))
stream = client.generate(ask("a", FOREVER))
next(stream)
print("works", flush=True)
for _ in range(int(sys.argv[2])):
    next(stream)
stream.close()
client.call("inject", "step:sleep=" + sys.argv[3])
stream = client.generate(ask("b", 3))
print("steps", flush=True)
print(len(list(stream)), "tokens", flush=True)
client.close()
"""


def test_a_parent_that_was_stopped_judges_nobody() -> None:
    """Once while the engine works, once in the midst of a long step. Full: thirty seconds under a limit of twenty."""
    stopped, limit, step = count(3, 30), count(2, 20), count(4, 40)
    arguments = [str(limit), "50", str(step)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        for word in ("works", "steps"):
            assert process.stdout.readline().strip() == word
            process.send_signal(signal.SIGSTOP)
            until(lambda: is_stopped(process.pid))
            threading.Event().wait(stopped)
            process.send_signal(signal.SIGCONT)
        rest = process.stdout.read()
        assert process.wait(60) == 0 and rest.strip() == "3 tokens", rest
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def test_ten_minutes_of_mixed_load() -> None:
    """Requests of all lengths, slow steps, calls and pauses; reduced to seconds in the ordinary suite."""
    seconds, limit = count(6, 600), count(2, 5)
    with connect(engine="faulty", options={"step_ms": 2}, stall_limit=limit) as client:
        witness = Witness(client)
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            streams = [client.generate(ask(f"{number}-{size}", size)) for size in (1, 7, 50, 200)]
            if number % 5 == 0:
                client.call("inject", f"step:sleep={0.4 * limit}")
            if number % 7 == 0:
                client.call(PAUSE_SCHEDULER, "keep", True)
                streams[3].close()
                client.call(RESUME_SCHEDULER)
            assert [sum(len(o.new_token_ids) for o in stream) for stream in streams[:3]] == [1, 7, 50]
            for stream in streams:
                stream.close()
            if number % 3 == 0:
                threading.Event().wait(0.1)
        print(f"\n{number} rounds in {seconds} s: {len(witness.of(EngineStalled))} alarms")
        assert not witness.heard


@pytest.fixture(autouse=True)
def errors_are_about_stuck_engines(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    errors = [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR]
    assert all("is stuck" in error or "has died" in error for error in errors), errors
