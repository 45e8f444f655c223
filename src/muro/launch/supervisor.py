"""Watch the engines that were started here, tell what happens to them, start their successors, and more of them.

One thread ("muro-supervisor") waits for the ends of children, ticks, and calls the listeners. Invariants:

- Everything that is known of the ranks changes under one re-entrant lock. It is held for the time of a bookkeeping:
  a start happens in a thread of its own (`launch.attempt`), and writing a stuck child's stacks without the lock.
- Each event is told once, in order, to every listener, by whichever thread finds it out: the supervisor's own, or one
  that calls `look`. A listener only takes note and wakes somebody; it must not take a lock that is held around calls
  of a supervisor. After `stop` nothing is told.
- The supervisor owns the children. A successor is started only when its predecessor has ended.
- Whoever has left is buried by the supervisor's own thread, without the lock: what it left behind may take its time.
- `stop` may be called from any thread, by a finalizer even in the supervisor's own; it is bounded.
- In a forked process a supervisor does nothing: the children are the parent's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from muro.config import RestartPolicy
from muro.errors import EngineDeadError, StartupError
from muro.ids import EngineRank, Generation
from muro.launch import shutdown
from muro.launch.attempt import Attempt, Replace, Replacement
from muro.launch.death import unborn_error
from muro.launch.events import (
    EngineAdded,
    EngineDied,
    EngineGivenUp,
    EngineProgress,
    EngineReplaced,
    EngineStalled,
    EngineStarted,
    Event,
)
from muro.launch.rank import Rank, RankStatus
from muro.launch.restart import Decision, RankState
from muro.launch.spawn import Child
from muro.launch.startup import StartupProgress
from muro.launch.turnover import Turnover
from muro.launch.watchdog import OwnTime, Verdict
from muro.transport.pump import Pump
from muro.transport.wakeup import Wakeup

log = logging.getLogger(__name__)

TICK = 0.2
"""Seconds between two looks at progress pages and failure records, which are memory and wake nobody."""
NOTICE_PATIENCE = 1.0
"""Seconds that an engine that announced its death gets to leave a cause before it is reported without one."""
ENDING_TIMEOUT = 6.0
"""Seconds that an engine that has announced its death gets to end by itself."""
_JOIN_TIMEOUT = 3.0

Listener = Callable[[Event], None]
Watch = Callable[[EngineRank, Generation, Child, float], Verdict | None]
"""Called with each engine that runs, each tick, in the supervisor's thread, and with the seconds that this thread has
counted so far (see `watchdog.OwnTime`). A verdict has the engine killed."""


class Supervisor:
    """Supervises children that are ready.

    Args:
        children: handles of `launch.spawn`, by rank; owned from now on.
        policy: what follows a death.
        replace: starts a successor; without it there are none.
        watch: judges engines that run.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        children: Mapping[EngineRank, Child],
        *,
        policy: RestartPolicy | None = None,
        replace: Replace | None = None,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = RestartPolicy() if policy is None or replace is None else policy
        self._replace = replace
        self._watch = watch
        self._clock = clock
        now = clock()
        self._ranks = {rank: Rank(rank, child, self._policy, now) for rank, child in children.items()}
        """By rank; replaced when one comes or goes, never changed."""
        self._turnover = Turnover(replace, self._wake, self.publish)
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.RLock()
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="muro-supervisor", daemon=True)
        self._name_by: float | None = None
        self._stopped = False
        self._owner = os.getpid()

    def open(self) -> Supervisor:
        """Begin. Raises StartupError if no thread can be made."""
        self._wakeup.open()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._wakeup.close()
            raise StartupError(f"no thread could be made to supervise the engines: {error}", phase="spawn") from error
        return self

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on; returns what ends that."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(kept for kept in self._listeners if kept is not listener)

        return unsubscribe

    def look(self) -> None:
        """Find out now what has happened; listeners have been told when this returns."""
        if self._stopped or os.getpid() != self._owner:
            return
        with self._lock:
            now = self._clock()
            for one in self._ranks.values():
                self._look_at(one, now)
            for rank, generation, born in self._turnover.settle():
                self._ranks = {**self._ranks, rank: Rank(rank, born.child, self._policy, now, generation)}
                self.publish(EngineAdded(rank, generation, born.ready, born.child.pid))
                self._wake()
            if self._name_by is not None and now >= self._name_by:
                self._name_by = None
                self.publish(nameless_death())

    def wait_end(self, rank: EngineRank, timeout: float) -> None:
        """Wait until the child of a rank has ended, because something else says that it is about to; then look."""
        one = self._ranks.get(rank)
        if one is not None and one.running and not self._stopped:
            one.child.wait(timeout)
        self.look()

    def notice(self) -> None:
        """An engine has announced its death.

        The announcement names nobody: an engine that was started here has left a failure record before it. Often its
        death is known already, and its successor may even serve.
        """
        with self._lock:
            self.look()
            for one in self._ranks.values():
                if one.unannounced or (one.leaving and one.child.failure() is not None):
                    one.unannounced = False
                    return
            if self._turnover.announced():
                return
            if not self._ranks:
                self.publish(nameless_death())
            elif self._name_by is None:
                self._name_by = self._clock() + NOTICE_PATIENCE
                self._wake()

    def status(self, rank: EngineRank) -> RankStatus | None:
        """How the engine of a rank is; None for one that was started elsewhere. Asks it nothing.

        What it says the listeners have been told: so an engine that serves can be used at once.
        """
        with self._lock:
            one = self._ranks.get(rank)
            return None if one is None else one.status(self._clock())

    @property
    def restarts(self) -> bool:
        """Whether engines that die may get successors."""
        return self._policy.policy != "never"

    def lost(self, rank: EngineRank, error: EngineDeadError) -> None:
        """An engine that was started elsewhere is taken for dead; nobody starts a successor here."""
        with self._lock:
            self.publish(EngineDied(rank, Generation(0), error))
            self.publish(EngineGivenUp(rank, error))

    def grow(self, rank: EngineRank) -> None:
        """Start an engine of a rank that is not there; EngineAdded or EngineUnborn tells what has become of it.

        Raises StartupError.
        """
        with self._lock:
            self._turnover.begin(rank)

    def stop_growing(self, rank: EngineRank) -> None:
        """Give up what `grow` has begun, if it is not done yet."""
        with self._lock:
            self._turnover.cancel(rank)

    def let_go(self, rank: EngineRank, timeout: float) -> None:
        """End the engine of a rank for good, `timeout` seconds after SIGTERM. EngineLeft tells that it is gone."""
        with self._lock:
            self._ranks[rank].let_go(self._clock() + timeout)
            self._wake()

    def stop(self, timeout: float) -> None:
        """End all children, and whatever is being started; they get `timeout` seconds together after SIGTERM."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._stopped = True
            attempts = [one.attempt for one in self._ranks.values() if one.attempt is not None]
            attempts += self._turnover.take_all()
            for attempt in attempts:
                attempt.cancel()
            self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT)
        started = [attempt.abandon(_JOIN_TIMEOUT) for attempt in attempts]
        children = [one.child for one in self._ranks.values()] + self._turnover.departed
        shutdown.stop([*children, *(child for child in started if child is not None)], timeout)
        with self._lock:
            self._wakeup.close()

    def _run(self) -> None:
        pump = Pump()
        pump.add(self._wakeup.fileno(), lambda: None)
        watched: set[int] = set()
        own = OwnTime(TICK, self._clock())
        tick_at = self._clock() + TICK
        while not self._stopped:
            try:
                watched = self._rewatch(pump, watched)
                pump.poll(int(max(0.0, min(self._due(), tick_at) - self._clock()) * 1000) + 1)
                self._wakeup.clear()
                self.look()
                self._turnover.bury()
                if (now := self._clock()) >= tick_at:
                    tick_at = now + TICK
                    self._judge(own.tick(now))
            except Exception:
                log.exception("the supervisor of the engines met a bug of ours; it goes on")
                time.sleep(TICK)  # whatever it is may happen again at once

    def _rewatch(self, pump: Pump, watched: set[int]) -> set[int]:
        """Poll the sentinels of those who have not ended."""
        wanted = {one.child.sentinel for one in self._ranks.values() if not one.ended} - {-1}
        for gone in watched - wanted:
            pump.remove(gone)
        for new in wanted - watched:
            pump.add(new, lambda: None)
        return wanted

    def _due(self) -> float:
        """When something has to be done although nothing happens."""
        with self._lock:
            now = self._clock()
            dues = [now + 3600.0 if self._name_by is None else self._name_by]
            for one in self._ranks.values():
                if one.kill_at is not None and not one.ended:
                    dues.append(one.kill_at)
                if one.restarts.state is RankState.BACKING_OFF and one.ended:
                    dues.append(now + one.restarts.remaining(now))
            return min(dues)

    def _look_at(self, one: Rank, now: float) -> None:
        if not one.ended and one.child.poll() is not None:
            one.ended = True
        if one.running and (one.ended or one.child.failure() is not None):
            self._bury(one, now)
        if one.kill_at is not None and not one.ended and now >= one.kill_at:
            one.kill_at = None
            one.child.kill()
            if one.running:  # even SIGKILL takes its time where the kernel is stuck; nobody shall wait for that
                self._bury(one, now)
        if one.attempt is not None:
            self._settle(one, one.attempt, now)
        if one.ended and (generation := one.restarts.start(now)) is not None:
            self._begin(one, generation, now)
        if one.ended and one.leaving and one.attempt is None:
            self._ranks = {rank: other for rank, other in self._ranks.items() if other is not one}
            self._turnover.departs(one.rank, one.restarts.generation, one.child)

    def _bury(self, one: Rank, now: float) -> None:
        """The engine of a rank has ended, or is about to; decide what follows."""
        death = one.child.death()
        if one.stuck:
            death = msgspec.structs.replace(death, stuck=one.stuck)
        if not one.ended:
            one.kill_at = now + ENDING_TIMEOUT
        one.died_at = now
        one.unannounced = self._name_by is None
        self._name_by = None
        generation = one.restarts.generation
        decision = one.restarts.died(death.status, now)
        self._mourn(one, generation, death.dead_error(one.rank, generation, decision), death.how(), decision)

    def _mourn(self, one: Rank, generation: Generation, error: EngineDeadError, cause: str, decision: Decision) -> None:
        one.cause = cause
        if decision.restart:
            error.retry_after = decision.delay + one.start_took
            log.warning("%s", error.message)
        elif self.restarts:
            log.error("%s", error.message)
        self.publish(EngineDied(one.rank, generation, error, decision.restart))
        if not decision.restart:
            self.publish(EngineGivenUp(one.rank, error))

    def _begin(self, one: Rank, generation: Generation, now: float) -> None:
        """Start a successor."""
        if self._replace is None or self._stopped:
            return

        def progressed(progress: StartupProgress) -> None:
            self.publish(EngineProgress(one.rank, generation, progress.sight.phase, progress.sight.percent))

        one.attempt = Attempt(self._replace, one.rank, generation, one.child, self._wake, progressed)
        attempts, budget = one.restarts.deaths, self._policy.budget
        log.warning("%s is started again: generation %d, %d of %d", one.child.name, generation, attempts, budget)
        self.publish(EngineStarted(one.rank, generation, attempts, budget, one.cause))
        one.started_at = now
        try:
            one.attempt.begin()
        except (OSError, RuntimeError) as error:
            one.attempt = None
            self._failed(one, generation, error, now)

    def _settle(self, one: Rank, attempt: Attempt, now: float) -> None:
        """See what has become of the start of a successor."""
        outcome = attempt.take()
        if outcome is None:
            return
        one.attempt = None
        one.start_took = now - one.started_at
        if one.leaving:
            if isinstance(outcome, Replacement):
                one.born_too_late(outcome.child, now)
        elif isinstance(outcome, Replacement):
            one.replaced_by(outcome.child, now)
            away = now - one.died_at
            log.warning("%s serves again after %.1f s: generation %d", one.child.name, away, attempt.generation)
            self.publish(EngineReplaced(one.rank, attempt.generation, outcome.ready, one.child.pid, away))
        else:
            self._failed(one, attempt.generation, outcome, now)

    def _failed(self, one: Rank, generation: Generation, cause: Exception, now: float) -> None:
        """A successor did not come up."""
        known = cause
        if not isinstance(known, StartupError):
            why = f"{type(cause).__name__}: {cause}"
            known = StartupError(f"{one.child.name} could not be started again: {why}", phase="spawn")
        decision = one.restarts.died(known.exit_status, now)
        error = unborn_error(known, one.rank, generation, decision)
        self._mourn(one, generation, error, known.message, decision)

    def _judge(self, seconds: float) -> None:
        """Let the watch look at everybody who runs."""
        if self._watch is None:
            return
        for one in self._ranks.values():
            if not one.running or one.ended or one.stuck:
                continue
            verdict = self._watch(one.rank, one.restarts.generation, one.child, seconds)
            if verdict is not None:
                self._stalled(one, verdict)

    def _stalled(self, one: Rank, verdict: Verdict) -> None:
        with self._lock:
            one.stuck = verdict.words
            self.publish(EngineStalled(one.rank, one.restarts.generation, verdict.words))
        stacks = one.child.dump_stack()
        where = f"; its threads stood here:\n{stacks}" if stacks else ""
        log.error("%s is stuck: %s; it is killed%s", one.child.name, verdict.words, where)
        one.child.kill()
        with self._lock:
            one.kill_at = self._clock() + 1.0

    def publish(self, event: Event) -> None:
        """Tell every listener, unless this was stopped; also for others who know of engines. Any thread."""
        with self._lock:
            if self._stopped:
                return
            for listener in self._listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener for events of engines failed")

    def _wake(self) -> None:
        with self._lock:
            self._wakeup.set()


def nameless_death() -> EngineGivenUp:
    """An engine has announced its death, and nobody can say more."""
    error = EngineDeadError("an engine has announced that it failed and ends; the cause stands in its own log")
    return EngineGivenUp(None, error)
