"""A child ends with its parent, whatever either of them is doing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.children import TARGETS
from tests.support.counts import count
from tests.support.deadline import process_ended

ROOT = Path(__file__).parents[2]
WITHIN = 5.0
"""Seconds that a front-end's engines may outlive it."""

PARENT = """
import ctypes, os, signal, sys, threading
from muro.launch.spawn import spawn
child = spawn("{target}", {{}}, name="engine")
phase = "{phase}"
while phase and child.progress().phase != phase:
    assert child.poll() is None, child.log_tail()
{more}
print(child.pid, flush=True)
signal.pause()
"""

Parent = Callable[..., tuple[subprocess.Popen[str], list[int]]]


@pytest.fixture
def parent() -> Iterator[Parent]:
    """Starts a program that spawns a child; gives the program and the pids that it prints."""
    programs = []

    def start(target: str, phase: str = "", more: str = "", pids: int = 1) -> tuple[subprocess.Popen[str], list[int]]:
        source = PARENT.format(target=f"{TARGETS}:{target}", phase=phase, more=more)
        program = subprocess.Popen(
            [sys.executable, "-c", source],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        programs.append(program)
        assert program.stdout is not None
        return program, [int(program.stdout.readline()) for _ in range(pids)]

    yield start
    for program in programs:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()


def kill(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait()


@pytest.mark.cases
@pytest.mark.parametrize(
    ("target", "phase"),
    [("wait_for_signal", ""), ("wait_for_signal", "waiting"), ("ignore_term", "waiting"), ("hold_lock", "holding")],
    ids=["starting", "idle", "deaf", "in native code with the interpreter lock"],
)
def test_killed_parent(parent: Parent, target: str, phase: str) -> None:
    for _ in range(count(1, 20)):
        program, (child,) = parent(target, phase)
        kill(program)
        process_ended(child, within=WITHIN)


@pytest.mark.cases
def test_descendants_end_too(parent: Parent) -> None:
    more = "while not child.log_tail(1): pass\nprint(child.log_tail(1))"
    program, (descendant, child) = parent("start_descendant", more=more, pids=2)
    kill(program)
    process_ended(child, within=WITHIN)
    process_ended(descendant, within=WITHIN)


@pytest.mark.cases
@pytest.mark.parametrize(
    ("fork", "target", "phase"),
    [
        ("os.fork()", "wait_for_signal", "waiting"),
        ("os.fork()", "hold_lock", "holding"),
        ("ctypes.CDLL(None).fork()", "wait_for_signal", "waiting"),
        ("ctypes.CDLL(None).fork()", "hold_lock", "holding"),  # here the warden alone can act
    ],
)
def test_a_fork_of_the_parent_does_not_keep_it_alive(parent: Parent, fork: str, target: str, phase: str) -> None:
    more = f"""
pid = {fork}
if pid == 0:
    os.close(1)
    signal.pause()
print(pid)
"""
    program, (fork_pid, child) = parent(target, phase, more, pids=2)
    try:
        kill(program)
        process_ended(child, within=WITHIN)
    finally:
        os.kill(fork_pid, signal.SIGKILL)
        process_ended(fork_pid)


def test_the_end_of_the_spawning_thread_changes_nothing(parent: Parent) -> None:
    more = f"""
children = []
thread = threading.Thread(target=lambda: children.append(spawn("{TARGETS}:return_code", {{}})))
thread.start()
thread.join()
children[0].wait()
print(children[0].poll())
"""
    _, (status, _) = parent("wait_for_signal", more=more, pids=2)
    assert status == 0


def test_a_parent_that_becomes_another_program(parent: Parent) -> None:
    more = """
print(child.pid, flush=True)
os.execv(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"])
"""
    _, (child,) = parent("hold_lock", "holding", more)
    process_ended(child, within=WITHIN)
