"""The server under fire: `muro serve` with its engine, its sockets and its log in places of their own.

Where root allows, log and nothing else lies on a file system of 4 MiB, so that it can be filled.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.support.deadline import until
from tests.support.programs import ROOT, environment

STALL_LIMIT = 3.0
_LOG_DISK = 4 << 20


class Growing(msgspec.Struct, frozen=True):
    """What must not grow from one quiet moment to the next."""

    rss_mib: float
    fds: int
    threads: int
    shm: int
    """Files in /dev/shm."""
    sockets: int
    """Entries in the directory of sockets."""
    processes: int


class World:
    """A server, from `with` to the end of the block.

    Args:
        arguments: further arguments of `muro serve`.
    """

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.directory = Path(tempfile.mkdtemp(prefix="muro-chaos-"))
        self.sockets = self.directory / "sockets"
        self.log = self.directory / "log" / "server.log"
        self.small_disk = False
        self.host, self.port = "127.0.0.1", 0

    def __enter__(self) -> Self:
        self.sockets.mkdir(mode=0o700)
        self.log.parent.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_LOG_DISK}", "tmpfs", str(self.log.parent)]
        self.small_disk = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        command = [
            *[sys.executable, "-m", "muro", "serve", "--port", "0", "--stall-limit", str(STALL_LIMIT)],
            *["--restart-budget", "100000/300", "--restart-backoff", "0.05/0.2", *self._arguments],
        ]
        self.greeting = self.directory / "greeting"
        env = environment(MURO_SOCKET_DIR=str(self.sockets))
        with self.greeting.open("wb") as out, self.log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=out, stderr=errors, start_new_session=True
            )
        found = until(self._address, within=120, what="the server serves")
        assert isinstance(found, re.Match), self.said()
        self.port = int(found[1])
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.small_disk:
            subprocess.run(["umount", "--lazy", str(self.log.parent)], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _address(self) -> re.Match[str] | str | None:
        if self.process.poll() is not None:
            return "ended"
        return re.search(r"is served on http://\S+:(\d+)", self.greeting.read_text())

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    def stop(self, within: float = 20.0) -> int:
        """Ask it to stop; gives its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def grown(self) -> Growing:
        """As it is now."""
        pid = self.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        return Growing(
            rss_mib=int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024,  # type: ignore[index]
            threads=int(re.search(r"Threads:\s+(\d+)", status)[1]),  # type: ignore[index]
            fds=len(os.listdir(f"/proc/{pid}/fd")),
            shm=len(os.listdir("/dev/shm")),
            sockets=sum(len(files) for _, _, files in os.walk(self.sockets)),
            processes=len(list(session(pid))),
        )

    def bound(self) -> list[Path]:
        """Its sockets, in the order of their names."""
        return sorted(path for path in self.sockets.rglob("*") if path.is_socket())

    def left_behind(self) -> list[str]:
        """What is still there after its end, in words."""
        found = [f"process {pid}" for pid in session(self.process.pid)]
        return found + [f"socket {name}" for _, _, files in os.walk(self.sockets) for name in files]


def session(leader: int) -> Iterator[int]:
    """The living processes of a session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    yield int(entry.name)


class Engine(msgspec.Struct):
    """What the server's `/health` says of its engine."""

    state: str
    pid: int | None = None
    generation: int = 0
    in_flight: int = 0


class Health(msgspec.Struct):
    """The body of `/health`."""

    status: str
    engines: list[Engine]
    queue: dict[str, Any] = {}

    @property
    def engine(self) -> Engine:
        return self.engines[0]


def now() -> float:
    """Seconds on the clock of a run."""
    return time.monotonic()
