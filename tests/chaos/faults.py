"""What is done to a running server, from outside. What goes wrong inside its engine comes with requests.

Each fault is a coroutine that does it and returns when its own part is over; `lethal` ones kill the engine, and the
run goes on to the next fault only when another generation serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
from collections.abc import Awaitable, Callable

import msgspec

from tests.chaos.oracle import NO_FILES
from tests.chaos.world import STALL_LIMIT, World
from tests.support.networks import Cable
from tests.support.strangers import greeting_templates, mutated, output_templates, request_templates

JUNK = 400
"""Messages that a stranger sends."""


class Scene(msgspec.Struct):
    """What a fault works on."""

    world: World
    engine_pid: int
    choose: random.Random
    cable: Cable | None = None
    """To the machine of the engine, if that is another one."""


class FaultKind(msgspec.Struct, frozen=True):
    """`lethal`: the engine does not survive it. `needs`: why it cannot be done here, or an empty text."""

    name: str
    lethal: bool
    commit: Callable[[Scene], Awaitable[None]]
    needs: Callable[[World], str] = lambda world: ""


async def _kill(scene: Scene) -> None:
    os.kill(scene.engine_pid, signal.SIGKILL)


async def _abort(scene: Scene) -> None:
    os.kill(scene.engine_pid, signal.SIGABRT)


async def _stop_and_continue(scene: Scene) -> None:
    """Shorter than the stall limit: nobody may take it for dead."""
    await _pause(scene.engine_pid, scene.choose.uniform(0.1, STALL_LIMIT * 0.6))


async def _stop_for_good(scene: Scene) -> None:
    os.kill(scene.engine_pid, signal.SIGSTOP)


async def _stop_the_server(scene: Scene) -> None:
    """Longer than the stall limit at times: the engine has done nothing wrong meanwhile."""
    await _pause(scene.world.process.pid, scene.choose.uniform(0.2, STALL_LIMIT * 1.5))


async def _stop_both(scene: Scene) -> None:
    """As a machine that sleeps."""
    pids = scene.world.process.pid, scene.engine_pid
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(scene.choose.uniform(0.2, STALL_LIMIT * 1.5))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


async def _pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def _full_disk(scene: Scene) -> None:
    """The log cannot be written; the engine is killed then, which there is much to say about."""
    fill = scene.world.log.parent / "fill"
    try:
        with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        await asyncio.sleep(scene.choose.uniform(0.1, 0.5))
        os.kill(scene.engine_pid, signal.SIGKILL)
        await asyncio.sleep(scene.choose.uniform(0.5, 2.0))
    finally:
        fill.unlink(missing_ok=True)
        os.truncate(scene.world.log, 0)


async def _few_files(scene: Scene) -> None:
    """The server may open hardly any more files: whoever comes then is sent away without a word."""
    pid = scene.world.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    have = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (have + scene.choose.randint(1, 5), before[1]))
    await asyncio.sleep(scene.choose.uniform(0.5, 1.5))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def _junk(scene: Scene) -> None:
    """Corrupt, empty and cut messages at every socket that the server has bound."""
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    seed = scene.choose.getrandbits(32)
    said = {zmq.PUSH: output_templates(), zmq.DEALER: [*request_templates(), *greeting_templates()]}
    try:
        for path in scene.world.bound():
            for kind, templates in said.items():
                with context.socket(kind) as socket:
                    socket.setsockopt(zmq.LINGER, 200)
                    socket.connect(f"ipc://{path}")
                    messages = mutated(templates, seed)
                    for _ in range(JUNK):
                        with contextlib.suppress(zmq.Again):
                            socket.send_multipart(next(messages) or [b""], zmq.DONTWAIT)
                        await asyncio.sleep(0)
    finally:
        await asyncio.to_thread(context.term)


def _needs_small_disk(world: World) -> str:
    return "" if world.small_disk else "full disk: a small file system can be mounted by root alone"


OUTSIDE = {
    kind.name: kind
    for kind in (
        FaultKind("kill", True, _kill),
        FaultKind("abort", True, _abort),
        FaultKind("stop for good", True, _stop_for_good),
        FaultKind("stop and continue", False, _stop_and_continue),
        FaultKind("stop the server", False, _stop_the_server),
        FaultKind("stop both", False, _stop_both),
        FaultKind("full disk, and a kill", True, _full_disk, _needs_small_disk),
        FaultKind(NO_FILES, False, _few_files),
        FaultKind("junk", False, _junk),
    )
}

LEFT_OUT = {
    "clock jumps": "the wall clock belongs to the whole machine, and a time namespace shifts only the monotonic one",
    "lost frames": "sockets of ZeroMQ that stay connected lose nothing; cut messages are part of the junk",
    "network cut": "engine and server of this run share a machine; another run has them apart: --apart (root)",
}
"""What is not done, and why."""
