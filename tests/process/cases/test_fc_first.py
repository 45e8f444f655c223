"""FC-18: the server as the first process of a container that has no init."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pytest

from tests.support.counts import count
from tests.support.deadline import process_ended, until
from tests.support.programs import children
from tests.support.tree import state

pytestmark = [pytest.mark.cases, pytest.mark.timeout(600)]

UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def allowed() -> bool:
    """Whether a PID namespace can be made here."""
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@dataclass
class Container:
    outside: subprocess.Popen[bytes]
    first: int
    """Process id, seen from here, of the one that is 1 inside."""
    output: IO[bytes]

    def said(self) -> str:
        return os.pread(self.output.fileno(), 1 << 20, 0).decode(errors="replace")

    def processes(self) -> list[int]:
        """All that live in it, zombies included."""
        inside = os.readlink(f"/proc/{self.first}/ns/pid")
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") == inside:
                    found.append(int(name))
        return found


@contextlib.contextmanager
def container(*arguments: str) -> Iterator[Container]:
    """`muro serve` as process 1."""
    if not allowed():
        pytest.skip("no PID namespace can be made here")
    with tempfile.TemporaryFile() as output:
        command = [*UNSHARE, sys.executable, "-m", "muro", "serve", "--port", "0", *arguments]
        outside = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            (first,) = until(lambda: children(outside.pid))
            made = Container(outside, first, output)
            until(lambda: "curl" in made.said() or outside.poll() is not None, within=40, what="it serves")
            assert outside.poll() is None, made.said()
            yield made
        finally:
            outside.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
            outside.wait()


def engine_in(box: Container) -> int:
    """The engine: the server's only child, which is the first process's first one."""

    def look() -> int:
        with contextlib.suppress(OSError, ValueError):
            (server,) = [pid for pid in children(box.first) if b"serve" in command(pid)]
            (engine,) = [pid for pid in children(server) if b"boot.py" in command(pid)]
            return engine
        return 0

    return until(look, within=20, what="an engine")


def command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def sleepers(box: Container) -> list[int]:
    return [pid for pid in box.processes() if b"sleep\x003601" in command(pid) and state(pid) not in "ZX"]


def test_fc18_engines_die_and_nobody_is_left_unreaped() -> None:
    kills = count(4, 20)
    restart = ("--restart-backoff", "0.05/0.1", "--restart-budget", f"{kills}/3600")
    with container("--engine", "tests.support.engines:WithFamily", *restart) as box:
        for _ in range(kills):
            victim = engine_in(box)
            until(lambda: len(sleepers(box)) == 3, within=20)  # two workers and an orphan
            os.kill(victim, signal.SIGKILL)
            process_ended(victim)
            until(lambda gone=victim: gone not in box.processes())
        engine_in(box)
        threading.Event().wait(2)
        defunct = [pid for pid in box.processes() if state(pid) == "Z"]
        print(f"{kills} kills; processes: {len(box.processes())}, defunct: {len(defunct)}")
        assert defunct == []
        assert len(box.processes()) <= 2 + 2 + 3
        os.kill(box.first, signal.SIGTERM)
        process_ended(box.first, within=8)
        assert box.outside.wait(5) == 0, box.said()
        assert "stopped" in box.said()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_fc18_it_hears_signals_and_leaves_nothing(number: signal.Signals) -> None:
    with container("--engine", "echo") as box:
        everybody = box.processes()
        assert len(everybody) == 4  # the first, the server, the engine and its warden
        os.kill(box.first, number)
        assert box.outside.wait(8) == 0, box.said()
        for pid in everybody:
            process_ended(pid, within=1)
        assert "Traceback" not in box.said()


def test_fc18_the_exit_code_is_the_servers() -> None:
    with container("--engine", "echo", "--restart", "never") as box:
        os.kill(engine_in(box), signal.SIGKILL)
        assert box.outside.wait(10) == 10, box.said()
