"""Our engine, from the command line: `muro serve ... --headless`, with its progress page in the test's hands."""

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from muro.transport.page import ProgressPage
from muro.wire.progress import PAGE_SIZE, Progress
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST
from tests.support.programs import ROOT, environment

_PAGE = "/memfd:muro-progress"


class Engine:
    """One engine that dials a front-end on this machine.

    Args:
        port: where the front-end's handshake socket listens, or a tap.
        arguments: of `muro serve`, the model among them.
    """

    def __init__(self, port: int, *arguments: str, rank: int = 0) -> None:
        command = [sys.executable, "-m", "muro", "serve", *arguments, "--headless"]
        command += ["--data-parallel-address", PORT_HOST, "--data-parallel-rpc-port", str(port)]
        command += ["--data-parallel-start-rank", str(rank)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._page: ProgressPage | None = None
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=self._log, stderr=self._log)

    def progress(self) -> Progress:
        """What its page says; the last words of one that has ended, if it was asked before."""
        if self._page is None:
            self._page = until(self._find_page, what="the engine shows a progress page")
        return self._page.read()

    def is_idle(self) -> bool:
        """Whether no request runs or waits in it."""
        progress = self.progress()
        return progress.running == progress.waiting == 0

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, within: float = 20.0) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(within)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()

    def log(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        self.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._page is not None:
            self._page.close()
        self._log.close()

    def _find_page(self) -> ProgressPage | None:
        """The page has no name, but whoever may trace the process can open its descriptor."""
        directory = Path(f"/proc/{self.process.pid}/fd")
        for entry in directory.iterdir():
            try:
                if os.readlink(entry).startswith(_PAGE):
                    fd = os.open(entry, os.O_RDWR | os.O_CLOEXEC)
                    return ProgressPage(fd, mmap.mmap(fd, PAGE_SIZE))
            except FileNotFoundError:  # closed meanwhile
                continue
        return None
