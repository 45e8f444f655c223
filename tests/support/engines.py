"""Engines for tests that need one of their own."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading

from muro.engine.interface import Report
from muro.engines.echo import EchoEngine
from muro.testing.faulty import FaultyEngine, FaultyOptions


class HangsInCleanUp(EchoEngine):
    """Fails while its cache is made, and never gets through its clean-up."""

    def __init__(self) -> None:
        super().__init__()
        atexit.register(threading.Event().wait)
        raise RuntimeError("no block fits into 0 bytes")


class WithWorker(FaultyEngine):
    """Has a process of its own, as engines of several devices do."""

    def __init__(self, options: FaultyOptions, report: Report) -> None:
        self._worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        super().__init__(options, report)

    def shutdown(self) -> None:
        super().shutdown()
        self._worker.kill()
        self._worker.wait()
