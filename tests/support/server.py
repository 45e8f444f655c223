"""A real server in a process of its own: `with Server("--engine", "echo") as server`."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.deadline import until


class Server:
    """`muro serve` on a free port. Leaving the block ends it, if the test has not.

    Args:
        arguments: flags.
        file_limit: soft and hard limit of open files that it starts with; None: as here.
    """

    def __init__(self, *arguments: str, file_limit: tuple[int, int | None] | None = None) -> None:
        self._arguments = arguments
        self._file_limit = file_limit
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "muro", "serve", "--port", "0", *self._arguments]
        if self._file_limit is not None:
            soft, hard = self._file_limit
            limits = f"resource.setrlimit(7, ({soft}, {hard or 'resource.getrlimit(7)[1]'}))"
            command = [sys.executable, "-c", f"import os, resource; {limits}; os.execv({command[0]!r}, {command!r})"]
        self.process = subprocess.Popen(
            command, stdout=self._output, stderr=self._errors, start_new_session=True, bufsize=0
        )
        self.url = ""
        return self

    def ready(self, within: float = 30.0) -> Self:
        """Wait until it serves."""
        found = until(
            lambda: self._address() or self.process.poll() is not None, within=within, what="the server is ready"
        )
        assert isinstance(found, str), self.errors()
        self.url = found
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._output.close()
            self._errors.close()

    def _address(self) -> str | None:
        found = re.search(r"is served on (\S+)", self.output())
        return found[1] if found and "curl" in self.output() else None

    def output(self) -> str:
        return _read(self._output)

    def errors(self) -> str:
        return _read(self._errors)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self, within: float = 10.0) -> int:
        return self.process.wait(within)

    @property
    def engine_pid(self) -> int:
        """Its only child."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        pids = [pid for thread in threads for pid in (thread / "children").read_text().split()]
        assert len(pids) == 1, pids
        return int(pids[0])

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def status(self, path: str = "/health") -> int:
        """Of one request on a connection of its own; 0 if nobody listens."""
        try:
            return httpx.get(self.url + path, timeout=5).status_code
        except httpx.HTTPError:
            return 0

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        lines = httpx.get(self.url + "/metrics", timeout=5).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))

    @contextlib.contextmanager
    def raw(self) -> Iterator[socket.socket]:
        """A TCP connection."""
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            yield connection

    def post_raw(self, connection: socket.socket, path: str, body: bytes) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)


def answer_on(connection: socket.socket) -> bytes:
    """One whole answer, of a connection that stays open."""
    with connection.makefile("rb") as file:
        head = b"".join(iter(file.readline, b"\r\n"))
        length = next(line for line in head.splitlines() if line.startswith(b"content-length:"))
        return head + file.read(int(length.partition(b":")[2]))


def _read(file: Any) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
