"""FC-05: engines that are idle, slow, paused or loading are not taken for stuck, nor by a parent that was stopped."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from muro import connect
from muro.config import RestartPolicy
from muro.launch.events import EngineReplaced, EngineStalled
from muro.launch.stopped import is_stopped
from muro.wire.ops import PAUSE_SCHEDULER, RESUME_SCHEDULER
from tests.support.asking import ask
from tests.support.counts import FULL, count
from tests.support.deadline import until
from tests.support.stalls import LIMIT, Witness, stalls_within

pytestmark = [pytest.mark.cases, pytest.mark.timeout(count(60, 1200))]


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
        assert not stalls_within(3 * LIMIT, witness)
        assert len(list(client.generate(ask("b")))) == 3


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
def test_a_pause(mode: str) -> None:
    with connect(engine="faulty", options={"step_ms": 5}, stall_limit=LIMIT) as client:
        witness = Witness(client)
        stream = client.generate(ask("a", 100))
        next(stream)
        client.call(PAUSE_SCHEDULER, mode, False)
        later = client.generate(ask("b"))
        assert not stalls_within(3 * LIMIT, witness)
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
        assert not stalls_within(3 * LIMIT, witness)
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
from tests.support.deadline import until

client = connect(engine="faulty", options={"step_ms": 5}, stall_limit=float(sys.argv[1]))
stream = client.generate(ask("a", FOREVER))
next(stream)
print("works", flush=True)
for _ in range(int(sys.argv[2])):
    next(stream)
stream.close()
client.call("inject", "step:sleep=" + sys.argv[3])
before = client.engines()[0].progress.steps_started
stream = client.generate(ask("b", 3))
until(lambda: client.engines()[0].progress.steps_started > before)
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
