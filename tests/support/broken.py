"""Broken and correct peers as processes of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from muro.testing.broken.__main__ import CORRECT_ENGINE, CORRECT_FRONTEND
from tests.support.programs import ROOT, environment

__all__ = ["CORRECT_ENGINE", "CORRECT_FRONTEND", "SOURCES", "handshake_address", "peer"]

SOURCES = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
"""For PYTHONPATH: what is tested is what lies beside the tests, whatever is installed."""


@contextlib.contextmanager
def handshake_address() -> Iterator[str]:
    """Where nobody listens yet."""
    with tempfile.TemporaryDirectory(prefix="check-") as directory:
        yield f"ipc://{directory}/h"


@contextlib.contextmanager
def peer(name: str, address: str) -> Iterator["subprocess.Popen[str]"]:
    """One peer; ended afterwards, if it has not ended itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "muro.testing.broken", name, address],
        cwd=ROOT,
        env=environment(PYTHONPATH=SOURCES),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            _, words = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        # Our SIGTERM may come when it has heard that the other side is gone, and has nothing left to do.
        assert process.returncode >= 0 or process.returncode == -signal.SIGTERM, f"{name}: {process.returncode} {words}"
