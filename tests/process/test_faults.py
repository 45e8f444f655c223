"""Faults that take the process along, each in a process of its own."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deadline import until

# A second thread shows by its beats whether the interpreter lock is free. It writes to the descriptor itself: a
# daemon thread that the end of the program catches inside `print` keeps the lock of the buffer, and Python aborts.
PROGRAM = """
import os, signal, sys, threading
from muro.engines.faults import commit, parse_fault

def beat(pause=threading.Event()):
    while not pause.wait(0.01):
        os.write(1, b"beat\\n")

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
threading.Thread(target=beat, daemon=True).start()
print("now", flush=True)
commit(parse_fault("step:" + sys.argv[1]))
if sys.argv[1] == "seize":  # it comes true a moment later
    threading.Event().wait()
print("returned", flush=True)
"""


class Child:
    """The program, and what it says."""

    def __init__(self, fault: str) -> None:
        command = [sys.executable, "-c", PROGRAM, fault]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.process.stdout is not None
        self.out = self.process.stdout.fileno()
        self.read_until(b"now")

    def read_until(self, word: bytes, times: int = 1) -> None:
        seen = b""
        while seen.count(word) < times:
            piece = os.read(self.out, 4096)
            assert piece, f"it ended and said {seen!r}"
            seen += piece

    def ends(self, status: int) -> bool:
        """Whether it ends with this status; if not, says what it said last."""
        found = self.process.wait(20)
        assert found == status, f"it ended with {found} and said {os.read(self.out, 1 << 16)[-2000:]!r}"
        return True

    def falls_silent(self) -> bool:
        """Whether nothing more is said for a second, fifty times as long as between two beats and more."""
        while select.select([self.out], [], [], 1.0)[0]:
            if not os.read(self.out, 4096):
                return False
        return True

    def processor_time(self) -> int:
        """Ticks that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    found: list[Child] = []
    yield found
    for child in found:
        child.close()


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("exit=7", 7),
        ("exit", 1),
        ("signal", -signal.SIGKILL),
        ("signal=SIGKILL", -signal.SIGKILL),
        ("signal=SIGSEGV", -signal.SIGSEGV),
        ("signal=SIGABRT", -signal.SIGABRT),
        ("signal=15", -signal.SIGTERM),  # although the program handles it
    ],
)
def test_an_end(children: list[Child], fault: str, status: int) -> None:
    child = Child(fault)
    children.append(child)
    assert child.ends(status)


def test_hanging_in_native_code_that_lets_others_run(children: list[Child]) -> None:
    child = Child("hang")
    children.append(child)
    child.read_until(b"beat", 5)
    child.process.terminate()
    child.read_until(b"beat", 5)
    assert child.process.poll() is None, "a handler in Python never comes to run"


def test_hanging_with_the_interpreter_lock(children: list[Child]) -> None:
    child = Child("hang_lock")
    children.append(child)
    assert child.falls_silent()
    child.process.terminate()
    assert child.falls_silent() and child.process.poll() is None


def test_another_thread_seizes_the_interpreter_lock(children: list[Child]) -> None:
    child = Child("seize")
    children.append(child)
    assert child.falls_silent()
    child.process.terminate()
    assert child.falls_silent() and child.process.poll() is None


def test_burning_the_processor(children: list[Child]) -> None:
    child = Child("spin")
    children.append(child)
    before = child.processor_time()
    until(lambda: child.processor_time() > before + 20, within=30.0, what="a fifth of a second of processor time")
    child.read_until(b"beat", 2)
    child.process.terminate()
    assert child.ends(3), "Python code can be interrupted"
