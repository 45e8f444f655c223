"""A foreign front-end's process: started, watched through its HTTP port, ended."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import httpx

from tests.interop.fetch import fetch
from tests.interop.peers import Peer, Setting, environment
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, free_port


class Front:
    """Waits for `engines` engines at `engine_port` and serves HTTP at `url`; engines may have dialled before.

    Args:
        engine_port: that of a front-end that has gone, for its successor.
    """

    def __init__(self, peer: Peer, model: Path, *, engines: int = 1, before: "Front | None" = None) -> None:
        fetch(peer.name)
        self.peer = peer
        self._directory = Path(tempfile.mkdtemp(prefix="f-")) if before is None else before.keep()
        self.port = free_port()
        self.engine_port = peer.engine_port(self._directory) if before is None else before.engine_port
        self.url = f"http://{PORT_HOST}:{self.port}"
        self.engines = engines
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        setting = Setting(model, self.port, self.engine_port, engines, self._directory)
        self.process = subprocess.Popen(
            peer.command(setting),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env=environment(peer),
        )

    def ready(self) -> None:
        """Wait until it serves."""
        found = until(
            lambda: self.serves() or self.process.poll() is not None, within=300, what=f"{self.peer.name} serves"
        )
        assert found and self.process.poll() is None, self.log()

    def serves(self) -> bool:
        """Whether it takes requests."""
        return self.status(self.peer.readiness) == 200

    def status(self, path: str) -> int:
        """Of one request on a connection of its own; 0 if nobody listens."""
        try:
            return httpx.get(self.url + path, timeout=5).status_code
        except httpx.HTTPError:
            return 0

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def log(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def kill(self) -> None:
        """At once, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def keep(self) -> Path:
        """Its directory, for a successor that is found at the same place."""
        directory, self._directory = self._directory, Path()
        return directory

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.kill()
        self._log.close()
        if self._directory != Path():
            shutil.rmtree(self._directory, ignore_errors=True)
