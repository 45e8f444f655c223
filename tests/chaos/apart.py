"""The engine on another machine: a network namespace with a cable to ours, which can be cut. Root may.

This process and the server that it starts move into one end; whoever starts engines over there is played by a thread,
which starts the next one when one has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from tests.chaos.faults import OUTSIDE, FaultKind, Scene
from tests.chaos.world import STALL_LIMIT
from tests.support.networks import Cable, two_machines
from tests.support.programs import ROOT, environment

PORT = 29550
POISONS = ("raise", "exit", "segfault", "executor fails", "slow step", "refuse", "garble", "raise in adding")
"""Faults of `requests` that make sense there: nobody over there kills an engine that hangs."""
_NEW_NETWORK = 0x40000000


class Elsewhere:
    """The other machine: one engine after the other, from `with` to the end of the block."""

    def __init__(self, cable: Cable) -> None:
        self.cable = cable
        self._over = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="chaos-elsewhere")

    @property
    def server_flags(self) -> list[str]:
        """What `muro serve` must be told here."""
        return ["--data-parallel-size-local", "0", *self._where]

    @property
    def engine_pid(self) -> int:
        """Of the engine that runs or ran last."""
        return 0 if self._process is None else self._process.pid

    def __enter__(self) -> Elsewhere:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over = True
        if self._process is not None:
            self._process.kill()
        self._thread.join()

    @property
    def _where(self) -> list[str]:
        return ["-dpa", self.cable.left.address, "-dpp", str(PORT), "--insecure-tcp"]

    def _keep(self) -> None:
        engine = [sys.executable, "-m", "muro", "serve", "--engine", "sim", "--headless", "--rejoin", *self._where]
        while not self._over:
            command = [*self.cable.right.prefix, *engine]
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=quiet, stderr=quiet)
            if self._over:  # it may have been asked for meanwhile
                self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def elsewhere() -> Iterator[Elsewhere | None]:
    """Move this thread to one end of a new cable, and keep an engine at the other; None where that cannot be."""
    with two_machines() as cable:
        if cable is None:
            yield None
            return
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            _enter(f"/run/netns/{cable.left.namespace}")
            with Elsewhere(cable) as there:
                yield there
        finally:
            _set(home)
            os.close(home)


def _enter(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


def _set(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


async def _cut(scene: Scene) -> None:
    """Long enough for both sides to notice."""
    await _without(scene, scene.choose.uniform(STALL_LIMIT + 2, STALL_LIMIT + 5))


async def _stutter(scene: Scene) -> None:
    """Short enough for nobody to lose anything."""
    await _without(scene, scene.choose.uniform(0.1, 0.7))


async def _without(scene: Scene, seconds: float) -> None:
    assert scene.cable is not None
    await asyncio.to_thread(scene.cable.cut)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(scene.cable.mend)


async def _stop_then_kill(scene: Scene) -> None:
    """It is taken for lost; only somebody over there can end it."""
    os.kill(scene.engine_pid, signal.SIGSTOP)
    await asyncio.sleep(STALL_LIMIT + 2)
    os.kill(scene.engine_pid, signal.SIGKILL)


APART = {
    kind.name: kind
    for kind in (
        OUTSIDE["kill"],
        OUTSIDE["abort"],
        FaultKind("stop, and a kill later", True, _stop_then_kill),
        FaultKind("network cut", True, _cut),
        FaultKind("network stutter", False, _stutter),
    )
}
"""What is done to an engine on another machine."""
