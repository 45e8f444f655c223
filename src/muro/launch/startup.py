"""Bring engines up: spawn the local ones, lead all through the handshake, return when every one is ready.

Watches at once the handshake socket, the ready responses on the input socket, the sentinels of the children,
their failure records and their progress pages. All or nothing: when anything goes wrong, every child is gone
before the error is raised. The sockets are lent by the caller and stay open.

A message that is not the protocol ends the start if it comes from an engine that is expected here; what a
stranger says is refused, remembered, and told if the start fails later.

An engine that was started elsewhere and whose connection ends before it is ready is waited for anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec

from muro.errors import RemoteProtocolError, StartupError
from muro.ids import EngineRank
from muro.launch.arrivals import Arrivals
from muro.launch.handle import ChildHandle, Spawner
from muro.launch.here import SpawnHere
from muro.launch.patience import Patience, Sight
from muro.launch.plan import LaunchPlan
from muro.launch.shutdown import stop
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, allow_handover, receive_from, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import rank_of
from muro.wire.handshake import FrontendHandshake, ReadyResponse

log = logging.getLogger(__name__)

_LAST_WORDS = 64
"""Words at the handshake socket that are read before somebody who has hung up is taken for gone."""
_LOOK_EVERY_MS = 200
"""Progress pages and failure records are memory, which cannot be polled; everything else wakes us at once."""
REMIND_EVERY = 5.0
"""Seconds after which those who are still missing are told again."""
_FAILING_GRACE = 2.0
"""Seconds for a child that has reported its failure to end by itself, so that its exit status can be told."""
_REFUSED_KEPT = 4
_NAMED = 4
"""Missing engines that one line of the log names."""


class StartupProgress(msgspec.Struct, frozen=True):
    """News of an engine that is starting. Times in seconds."""

    rank: EngineRank
    name: str
    sight: Sight
    waited: float
    """Since the start began."""
    remaining: float
    """Until the start is given up if no engine makes progress."""


class Started(msgspec.Struct, frozen=True):
    """All engines are ready; `children` are those spawned here."""

    children: dict[EngineRank, ChildHandle]
    responses: dict[EngineRank, ReadyResponse]


def start(
    plan: LaunchPlan,
    handshake: Socket,
    inputs: Socket,
    *,
    spawner: Spawner | None = None,
    greeters: Arrivals | None = None,
    arrivals: Arrivals | None = None,
    on_progress: Callable[[StartupProgress], None] | None = None,
    cancel: Wakeup | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Started:
    """Start the engines of a plan and wait until all of them are ready.

    Args:
        plan: see `launch.plan`.
        handshake: ROUTER, bound to the plan's handshake address.
        inputs: this front-end's input ROUTER, where the ready responses arrive.
        spawner: starts the plan's local engines; None: here.
        greeters: the connections of `handshake`, if engines may come from elsewhere.
        arrivals: those of `inputs`; knows afterwards whose is whose.
        on_progress: called in this thread with every change, and every `REMIND_EVERY` seconds with each engine that is
            still missing. Without it the log says so of engines that were started elsewhere.
        cancel: set it, from any thread, to give the start up.
        clock: seconds, monotonic.

    Raises:
        StartupError: an engine died, failed, broke the handshake or made no progress for
            `plan.startup_timeout` seconds; or the start was cancelled.
        ConfigError: nothing could be spawned with these settings.
    """
    startup = _Startup(plan, handshake, inputs, on_progress, clock)
    startup.greeters, startup.arrivals = greeters, arrivals
    try:
        startup.spawn(SpawnHere() if spawner is None else spawner)
        # An engine that has lost another front-end may dial again before its old connection is quite gone.
        allow_handover(handshake, greeters is not None)
        startup.wait(cancel)
        allow_handover(handshake, False)
    except BaseException:
        stop(startup.children.values(), 0.0, force=True)
        raise
    return Started(startup.children, startup.responses)


class _Startup:
    """One start under way."""

    def __init__(
        self,
        plan: LaunchPlan,
        handshake: Socket,
        inputs: Socket,
        on_progress: Callable[[StartupProgress], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._plan = plan
        self._handshake_socket = handshake
        self._inputs = inputs
        self._on_progress = on_progress
        self._clock = clock
        self._began = clock()
        self._handshake = FrontendHandshake(plan.expected, plan.init)
        self._patience = Patience(plan.expected, plan.startup_timeout, self._began)
        self._remind_at = self._began + REMIND_EVERY
        self._pump = Pump()
        self._refused: list[str] = []
        self._refusals = 0
        self.greeters: Arrivals | None = None
        self.arrivals: Arrivals | None = None
        self.children: dict[EngineRank, ChildHandle] = {}

    @property
    def responses(self) -> dict[EngineRank, ReadyResponse]:
        return self._handshake.responses

    def spawn(self, spawner: Spawner) -> None:
        for rank in self._plan.local:
            child = spawner.start(self._plan, rank)
            self.children[rank] = child
            self._pump.add(child.sentinel, partial(self._ended, rank))

    def wait(self, cancel: Wakeup | None) -> None:
        self._pump.add(self._handshake_socket, self._greet)
        self._pump.add(self._inputs, self._hear)
        for connections in (self.greeters, self.arrivals):
            if connections is not None:
                self._pump.add(connections.socket, partial(self._miss, connections))
        if cancel is not None:
            self._pump.add(cancel.fileno(), self._cancelled)
        while not self._handshake.done:
            left_ms = int(self._patience.remaining(self._clock()) * 1000) + 1
            self._pump.poll(min(_LOOK_EVERY_MS, left_ms))
            self._look()

    def _greet(self) -> bool:
        """Take a word at the handshake socket; whether there was one."""
        if (received := receive_from(self._handshake_socket)) is None:
            return False
        frames, descriptor = received
        try:
            replies = self._handshake.receive([bytes(frame) for frame in frames])
        except RemoteProtocolError as error:
            self._refuse(frames, error)
            return True
        for identity, payload in replies:
            self._note(self.greeters, identity, descriptor)
            send_nowait(self._handshake_socket, [identity, payload])  # refused: it has gone, and will be missed
        return True

    def _hear(self) -> None:
        if (received := receive_from(self._inputs)) is None:
            return
        frames, descriptor = received
        try:
            self._handshake.ready_response([bytes(frame) for frame in frames])
        except RemoteProtocolError as error:
            self._refuse(frames, error)
            return
        self._note(self.arrivals, bytes(frames[0]), descriptor)

    def _note(self, connections: Arrivals | None, identity: bytes, descriptor: int) -> None:
        """Keep in mind by which connection an engine has come, if nothing else tells of its end."""
        if connections is not None and (rank := rank_of(identity)) not in self._plan.local:
            connections.note(rank, descriptor)
            self._miss(connections)  # it may have gone already

    def _miss(self, connections: Arrivals) -> None:
        """Wait anew for engines whose connection has ended."""
        lost = connections.lost()
        for _ in range(_LAST_WORDS if lost and connections is self.greeters else 0):
            if not self._greet():  # whoever says READY and hangs up has said it, though we see the end first
                break
        for rank in lost:
            if connections is self.arrivals:
                self._handshake.forget(rank)
            elif not self._handshake.hung_up(rank):
                continue
            log.warning("%s has gone before it was ready; another one is waited for", self._plan.name(rank))

    def _refuse(self, frames: list[Frame], error: RemoteProtocolError) -> None:
        try:
            rank = rank_of(bytes(frames[0][:64]))
        except RemoteProtocolError:
            rank = None
        if rank in self._plan.expected:
            hint = f"perhaps another engine that was started elsewhere dials as rank {rank}, too"
            also = f"; {hint}" if self.greeters is not None else ""
            raise self._failed(rank, f"it broke the handshake: {error}{also}") from error
        if str(error) not in self._refused:  # a wrong rank dials again and again
            self._refused = [*self._refused, str(error)][-_REFUSED_KEPT:]
        self._refusals += 1
        if self._refusals & (self._refusals - 1) == 0:  # 1, 2, 4, 8 ...: a flood stays readable
            log.warning("refused %d words while engines start; the last: %s", self._refusals, error)

    def _ended(self, rank: EngineRank) -> None:
        self.children[rank].wait()
        raise self._failed(rank)

    def _cancelled(self) -> None:
        raise StartupError("the start was cancelled", phase="cancelled")

    def _look(self) -> None:
        for rank, child in self.children.items():
            if child.failure() is not None:
                child.wait(_FAILING_GRACE)
                raise self._failed(rank)
        now = self._clock()
        sights = {rank: self._sight(rank, words) for rank, words in self._handshake.missing().items()}
        moved = self._patience.look(sights, now)
        if remind := now >= self._remind_at:
            self._remind_at = now + REMIND_EVERY
        for rank, sight in sights.items():
            if remind or rank in moved:
                self._tell(rank, sight, now)
        if remind and self._on_progress is None:
            self._log_missing(sights, now)
        if (late := self._patience.overdue(now)) is not None:
            if late in self.children:
                self.children[late].dump_stack()
            raise self._failed(
                late,
                f"no progress for {self._plan.startup_timeout:g} s (setting: startup_timeout), "
                f"{now - self._began:.1f} s after the start began; it stands at {sights[late]}",
            )

    def _sight(self, rank: EngineRank, waiting_for: str) -> Sight:
        if rank not in self.children:
            return Sight(waiting_for)
        progress = self.children[rank].progress()
        return Sight(waiting_for, progress.phase, progress.percent)

    def _tell(self, rank: EngineRank, sight: Sight, now: float) -> None:
        if self._on_progress is not None:
            waited, remaining = now - self._began, self._patience.remaining(now)
            self._on_progress(StartupProgress(rank, self._plan.name(rank), sight, waited, remaining))

    def _log_missing(self, sights: dict[EngineRank, Sight], now: float) -> None:
        elsewhere = [f"{self._plan.name(rank)}: {sight}" for rank, sight in sights.items() if rank not in self.children]
        if elsewhere:
            log.warning(
                "after %.0f s %d of %d engines are missing; they must dial %s: %s",
                now - self._began,
                len(elsewhere),
                len(self._plan.expected),
                self._plan.handshake_address,
                "; ".join(elsewhere[:_NAMED]) + ("; ..." if len(elsewhere) > _NAMED else ""),
            )

    def _failed(self, rank: EngineRank, why: str = "") -> StartupError:
        """The error of the engine that is to blame; `why` is needed unless it has ended or reported a failure."""
        if self._refused:
            why = f"{why or self.children[rank].death().how()}; refused meanwhile: {' | '.join(self._refused)}"
        if rank in self.children:
            return self.children[rank].death().startup_error(rank, why)
        return StartupError(
            f"{self._plan.name(rank)} did not start: {why}; it must dial {self._plan.handshake_address}",
            rank=rank,
            phase=self._handshake.stage(rank).name.lower(),
        )
