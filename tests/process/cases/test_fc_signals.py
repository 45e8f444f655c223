"""FC-29, FC-30: stop signals at every stage, once and many times, to the server, to its engine and to both."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.counts import count, spread
from tests.support.deadline import process_ended, until
from tests.support.programs import children
from tests.support.server import Server
from tests.support.tree import marked, token_of

pytestmark = [pytest.mark.cases, pytest.mark.timeout(900)]

FAMILY = ("--engine", "tests.support.engines:WithFamily")
TIDY = ("--engine", "tests.support.engines:TidiesUp")
STOPS = (signal.SIGTERM, signal.SIGINT)


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def no_traceback(server: Server) -> None:
    assert "Traceback" not in server.errors(), server.errors()
    assert len(server.errors().splitlines()) < 12, server.errors()


# --- Again and again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["server", "engine", "both groups"])
def test_fc29_more_signals_do_not_cut_the_clean_up_short(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv("MURO_TEST_TIDY", str(notes))
    for seed in range(count(1, 12)):
        choose = random.Random(f"{to} {seed}")
        notes.unlink(missing_ok=True)
        with Server(*TIDY) as server:
            server.ready()
            engine, token = server.engine_pid, token_of(server.engine_pid)
            everybody = marked(token)
            server.signal(choose.choice(STOPS))
            # The server has had one, and its engine gets one from it: four are the most that change nothing.
            for _ in range(choose.randint(1, 3)):
                pause(choose.uniform(0, 0.6))
                number = choose.choice(STOPS)
                if to == "server":
                    server.signal(number)
                elif to == "engine":
                    tell(engine, number)
                else:
                    os.killpg(server.process.pid, number)
                    tell_group(engine, number)
            assert server.exit_code(20) == 0, server.errors()
            assert notes.read_text() == "done"
            for pid in everybody:
                process_ended(pid, within=0.5)
            no_traceback(server)
            assert server.output().count("stopped") == 1


def tell(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has done
        return


def tell_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


@pytest.mark.parametrize("number", STOPS)
def test_fc29_the_fifth_signal_forces(number: signal.Signals) -> None:
    with Server(*FAMILY, "--engine-option", "fault=shutdown:hang_lock") as server:
        server.ready()
        everybody = marked(token_of(server.engine_pid))
        began = time.monotonic()
        sent = 0
        while server.process.poll() is None and sent < 60:  # two that come before the first is noticed are one
            server.signal(number)
            sent += 1
            pause(0.1)
        assert sent >= 5
        assert server.exit_code(8) == 128 + number
        print(f"forced after {time.monotonic() - began:.2f} s")
        for pid in everybody:
            process_ended(pid, within=1)
        no_traceback(server)
        assert "forced" in server.errors()


def test_fc29_an_engine_that_is_stopped_is_ended_all_the_same() -> None:
    with Server(*FAMILY) as server:
        server.ready()
        everybody = marked(token_of(server.engine_pid))
        os.kill(server.engine_pid, signal.SIGSTOP)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.exit_code(20) == 0
        print(f"ended after {time.monotonic() - began:.2f} s")
        assert time.monotonic() - began < 6
        for pid in everybody:
            process_ended(pid, within=0.5)


# --- While it starts -----------------------------------------------------------------------------------------------


def hears(server: Server) -> bool:
    """Whether the server has a handler for SIGTERM: its first line has been run."""
    rows = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    caught = next(int(row.split()[1], 16) for row in rows if row.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def shows(server: Server, *stages: str) -> bool:
    """Whether it shows the first of these, or one that comes later: a stage may be too short to be shown."""
    said = server.errors()
    return any(stage in said for stage in stages)


STAGES: dict[str, Callable[[Server], object]] = {
    "imports": hears,
    "engine spawned": lambda server: children(server.process.pid),
    "engine boots": lambda server: shows(server, "interpreter", "handshake", "weights"),
    "handshake": lambda server: shows(server, "handshake", "weights"),
    "loading": lambda server: "weights" in server.errors(),
    "READY": lambda server: "is served on" in server.output(),
}


@pytest.mark.parametrize(("stage", "number", "to"), spread(STAGES, STOPS, ["server", "server and engine"]))
def test_fc30_a_stop_at_each_stage_of_the_start(stage: str, number: signal.Signals, to: str) -> None:
    if stage == "imports" and to != "server":
        pytest.skip("there is no engine yet")
    slow = () if stage == "READY" else ("--engine-option", "fault=loading:sleep=30")
    for seed in range(count(1, 10)):
        choose = random.Random(f"{stage} {number} {to} {seed}")
        with Server(*FAMILY, *slow) as server:
            until(lambda: STAGES[stage](server), within=30, what=stage)
            pause(choose.choice((0, choose.uniform(0, 0.3))))
            tree = [pid for engine in children(server.process.pid) for pid in tree_of(engine)]
            began = time.monotonic()
            if to == "server and engine":  # as an init system does that stops a whole control group
                for engine in children(server.process.pid):
                    tell_group(engine, number)
            server.signal(number)
            assert server.exit_code(15) == 0, server.errors()
            print(f"{stage}, {number.name} to {to}: gone after {time.monotonic() - began:.2f} s")
            for pid in tree:
                process_ended(pid, within=0.5)
            no_traceback(server)


def tree_of(engine: int) -> list[int]:
    try:
        return marked(token_of(engine))
    except (OSError, AssertionError):  # it is not there yet, or no longer
        return []


def test_fc30_before_the_first_line_sigterm_does_what_it_does_to_any_program() -> None:
    codes = []
    for moment in range(count(8, 60)):
        with Server("--engine", "echo") as server:
            pause(moment % 8 * 0.01)
            server.signal(signal.SIGTERM)
            codes.append(server.exit_code(15))
            no_traceback(server)
    print(f"exit codes: {codes}")
    assert set(codes) <= {0, -signal.SIGTERM}
