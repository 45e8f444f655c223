"""A foreign front-end and our engines behind it, ready to serve.

With MURO_INTEROP_TAP=DIR in the environment every engine dials a `muro wire tap` that stands between them and records
into DIR; what has passed can be looked at afterwards, and every message of our engines must keep the rules of
`muro wire check --recording`.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from muro.probe.check import check_recording
from tests.interop.engine import Engine
from tests.interop.front import Front
from tests.interop.peers import Peer
from tests.support.elsewhere import PORT_HOST, free_port
from tests.support.programs import ROOT, environment

ECHO = ("--engine", "faulty", "--engine-option", "step_ms=2", "--engine-option", "max_model_len=8192")
"""An engine that repeats its prompt, one token in 2 ms, and goes wrong on command."""

_recordings = itertools.count(1)


class Pair(msgspec.Struct):
    """A front-end of others and engines of ours."""

    front: Front
    engines: list[Engine]

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    def http(self) -> httpx.Client:
        return self.front.http()

    def is_idle(self) -> bool:
        return all(engine.is_idle() for engine in self.engines)


@contextlib.contextmanager
def paired(peer: Peer, model: Path, *arguments: str, engines: int = 1) -> Iterator[Pair]:
    """Both, ready; ended afterwards. `arguments` are those of `muro serve`.

    What they have logged is printed, for pytest to show if the test fails.
    """
    with contextlib.ExitStack() as stack:
        front = Front(peer, model, engines=engines)
        stack.callback(front.close)
        stack.callback(lambda: print(front.log()))
        port = stack.enter_context(engine_door(front))
        running = []
        for rank in range(engines):
            engine = Engine(port, *arguments, rank=rank)
            stack.callback(engine.close)
            stack.callback(lambda engine=engine: print(engine.log()))
            running.append(engine)
        front.ready()
        for engine in running:
            engine.progress()  # opens the page, so that no test seems to have left it open
        yield Pair(front, running)


@contextlib.contextmanager
def engine_door(front: Front) -> Iterator[int]:
    """The port that engines of this front-end dial: its own, or that of a tap before it."""
    directory = os.environ.get("MURO_INTEROP_TAP")
    if not directory:
        yield front.engine_port
        return
    port = free_port()
    file = Path(directory) / f"{front.peer.name}-{os.getpid()}-{next(_recordings)}.rec"
    command = [sys.executable, "-m", "muro", "wire", "tap", "--listen", f"tcp://{PORT_HOST}:{port}"]
    command += ["--to", f"tcp://{PORT_HOST}:{front.engine_port}", "--record", str(file)]
    tap = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        yield port
    finally:
        tap.send_signal(signal.SIGINT)
        tap.wait(20)
    report = check_recording(str(file), front.peer.release)
    assert not report.failures, report
