"""The coordinator's process, and its successors: started, watched, started again when it dies, ended.

Engines and front-ends go on without it: engines keep dialling its addresses, which stay the same, and front-ends
balance by what they have in flight themselves. So a death is a word in the log, and a restart after a pause that grows.
But engines that start wait for it. So one that does nothing any more, stopped or stuck, is killed.

Invariants:
- One thread watches. It alone replaces the child.
- A successor is started only when its predecessor has ended. `stop` may be called from any thread, and is bounded.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from muro.config import CoordinatorConfig, RestartPolicy
from muro.errors import StartupError
from muro.launch import shutdown
from muro.launch.restart import RankState, Restarts
from muro.launch.spawn import Child, spawn
from muro.launch.watchdog import OwnTime
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint, tcp_endpoint
from muro.transport.pump import Pump
from muro.transport.sockets import bind_pull, bound_address, close
from muro.transport.wakeup import Wakeup
from muro.wire.progress import SERVING

TARGET: Final = "muro.coordinator.main:run_coordinator"
"""What a coordinator's process calls."""
START_TIMEOUT = 30.0
"""Seconds until a coordinator that was started must listen."""
STUCK_AFTER = 20.0
"""Seconds, as the keeper counts them, after which one that does nothing is killed; it has to do something every 5 s."""
_LOOK = 0.02
_LOOKS = 4
"""How often one that does nothing is looked at until it is killed."""
_JOIN_TIMEOUT = 3.0
POLICY: Final = RestartPolicy(policy="always", budget=1_000_000)
"""It holds nothing that a successor could miss, so it is started again however often it dies."""

log = logging.getLogger(__name__)


def coordinator_config(
    num_engines: int,
    directory: EndpointDirectory,
    host: str | None = None,
    *,
    lockstep: bool = False,
    **more: str | bool,
) -> CoordinatorConfig:
    """Settings with addresses that are free: ipc in a private directory, or TCP ports of `host`. Raises ConfigError."""
    names = {
        "input_address": "coordinator-in",
        "output_address": "coordinator-out",
        "stats_address": "coordinator-stats",
    }
    if host is None:
        addresses = {key: ipc_endpoint(directory, role) for key, role in names.items()}
    else:
        addresses = dict(zip(names, free_addresses(host, len(names)), strict=True))
    values = {"num_engines": num_engines, "lockstep": lockstep, **addresses, **more}
    return msgspec.convert(values, CoordinatorConfig)


class CoordinatorKeeper:
    """Keeps one coordinator running.

    Args:
        config: what it is started with, each time.
        stuck_after: see `STUCK_AFTER`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        stuck_after: float = STUCK_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._stuck_after = stuck_after
        self._clock = clock
        self._own = OwnTime(stuck_after / _LOOKS, clock())
        self._seen: tuple[int, str, int] | None = None
        """What moves as long as it is alive."""
        self._moved_at = 0.0
        self._restarts = Restarts(POLICY)
        self._child: Child | None = None
        self._wakeup = Wakeup()
        self._stopped = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="muro-coordinator", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process that runs now, or ran last."""
        return None if self._child is None else self._child.pid

    @property
    def generation(self) -> int:
        """How often it has been started again."""
        return self._restarts.generation

    def start(self) -> None:
        """Start it; it listens when this returns. Raises StartupError."""
        child = self._child = self._spawn()
        deadline = self._clock() + START_TIMEOUT
        while child.progress().phase != SERVING:
            ended = child.wait(_LOOK)
            if ended or self._clock() > deadline:
                error = child.death().startup_error(
                    None, "" if ended else f"it does not listen after {START_TIMEOUT:g} s"
                )
                shutdown.stop([child], 0, force=True)
                raise error
        self._wakeup.open()
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End it; it gets `timeout` seconds after SIGTERM. Idempotent."""
        if os.getpid() != self._owner or self._stopped:
            return
        self._stopped = True
        self._wakeup.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT)
        if self._child is not None:
            shutdown.stop([self._child], timeout)
        self._wakeup.close()

    def _spawn(self) -> Child:
        payload = msgspec.to_builtins(self.config)
        return spawn(TARGET, payload, name="the coordinator", generation=self._restarts.generation)

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._watch()
            except Exception:
                log.exception("the keeper of the coordinator met a bug of ours; it goes on")
                self._wait(1.0)

    def _watch(self) -> None:
        """Wait for the end of the child, or for the time to start the next one, and do what is due."""
        child = self._child
        if child is None:
            return
        if self._restarts.state is RankState.RUNNING:
            self._wait(self._stuck_after / _LOOKS, child)
            if child.poll() is None:
                self._judge(child)
            elif not self._stopped:
                decision = self._restarts.died(child.poll(), self._clock())
                death = child.death()
                words = death.how() + death.details()
                log.error("the coordinator is started again in %.1f s: %s", decision.delay, words)
            return
        self._wait(self._restarts.remaining(self._clock()))
        if self._stopped or self._restarts.start(self._clock()) is None:
            return
        child.close()
        try:
            self._child = self._spawn()
            self._restarts.serves()
        except StartupError as error:
            decision = self._restarts.died(None, self._clock())
            log.error("%s; it is tried again in %.1f s", error.message, decision.delay)

    def _judge(self, child: Child) -> None:
        """Kill one that does nothing any more; its end is noticed as any other."""
        seconds, progress = self._own.tick(self._clock()), child.progress()
        seen = child.pid, progress.phase, progress.activity_since_ns
        if seen != self._seen:
            self._seen, self._moved_at = seen, seconds
        elif seconds - self._moved_at >= self._stuck_after and not self._stopped:
            log.error(
                "the coordinator is stuck: it has done nothing for %.0f s; it is killed", seconds - self._moved_at
            )
            child.kill()

    def _wait(self, seconds: float, child: Child | None = None) -> None:
        """Wait so long, or until asked to stop, or until the child has ended."""
        pump = Pump()
        pump.add(self._wakeup.fileno(), lambda: None)
        if child is not None:
            pump.add(child.sentinel, lambda: None)
        pump.poll(int(seconds * 1000) + 1)


def free_addresses(host: str, count: int) -> list[str]:
    """Addresses at which nobody listens now: they must be known before the process that will listen is started."""
    held = [bind_pull(tcp_endpoint(host)) for _ in range(count)]
    try:
        return [bound_address(socket) for socket in held]
    finally:
        for socket in held:
            close(socket, 0)
