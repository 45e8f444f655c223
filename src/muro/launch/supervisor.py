"""Watch the engines that were started here, tell what happens to them, start their successors, and more of them.

One thread ("muro-supervisor") waits for the ends of children, ticks, and calls the listeners. Invariants:

- Everything that is known of the ranks changes under one re-entrant lock. It is held for the time of a bookkeeping:
  a start happens in a thread of its own (`launch.attempt`), and writing a stuck child's stacks without the lock.
- Each event is told once, in order, to every listener, by whichever thread finds it out: the supervisor's own, or one
  that calls `look`. A listener only takes note and wakes somebody; it must not take a lock that is held around calls
  of a supervisor. After `stop` nothing is told.
- The supervisor owns the children. A successor is started only when its predecessor has ended.
- Lockstep engines are one group: the death of one ends all, is told of all as the cause, and all start again together.
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

from muro.config import RestartPolicy
from muro.errors import EngineDeadError, StartupError, UsageError
from muro.ids import EngineRank, Generation
from muro.launch import shutdown
from muro.launch.attempt import Attempt, Replace
from muro.launch.death import bereft_error, unborn_error
from muro.launch.events import (
    EngineDied,
    EngineGivenUp,
    EngineProgress,
    EngineReplaced,
    EngineStalled,
    EngineStarted,
    Event,
    nameless_death,
)
from muro.launch.handle import ChildHandle
from muro.launch.listeners import Listener, Listeners
from muro.launch.rank import Group, Rank, RankStatus
from muro.launch.restart import Decision, RankState
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

Watch = Callable[[EngineRank, Generation, ChildHandle, float], Verdict | None]
"""Called each tick, in the supervisor's thread, with each engine that runs, and with the seconds that this thread has
counted so far (see `watchdog.OwnTime`). A verdict has the engine killed."""


class Supervisor:
    """Supervises children that are ready.

    Args:
        children: handles of `launch.spawn`, by rank; owned from now on.
        policy: what follows a death.
        replace: starts a successor; without it there are none.
        watch: judges engines that run.
        lockstep: whether the children are one group.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        children: Mapping[EngineRank, ChildHandle],
        *,
        policy: RestartPolicy | None = None,
        replace: Replace | None = None,
        watch: Watch | None = None,
        lockstep: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = RestartPolicy() if policy is None or replace is None else policy
        self._replace = replace
        self._watch = watch
        self._clock = clock
        now = clock()
        ranks = [Rank(rank, child, now) for rank, child in children.items()]
        together = [ranks] if lockstep and ranks else [[one] for one in ranks]
        self._groups = [Group(some, self._policy, now) for some in together]
        """Replaced when one comes or goes, never changed."""
        self._turnover = Turnover(replace, self._policy, self._wake, self.publish)
        self._listeners = Listeners()
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
        return self._listeners.add(listener)

    def look(self) -> None:
        """Find out now what has happened; listeners have been told when this returns."""
        if self._stopped or os.getpid() != self._owner:
            return
        with self._lock:
            now = self._clock()
            for group in self._groups:
                self._look_at(group, now)
            if born := self._turnover.settle(now):
                self._groups = [*self._groups, *born]
                self._wake()
            if self._name_by is not None and now >= self._name_by:
                self._name_by = None
                self.publish(nameless_death())

    def wait_end(self, rank: EngineRank, timeout: float) -> None:
        """Wait until the child of a rank has ended, because something else says that it is about to; then look."""
        if (found := self._find(rank)) is not None and found[0].running and not self._stopped:
            found[1].child.wait(timeout)
        self.look()

    def notice(self) -> None:
        """An engine has announced its death.

        The announcement names nobody: an engine that was started here has left a failure record before it. Often its
        death is known already, and its successor may even serve.
        """
        with self._lock:
            self.look()
            for one in self._ranks():
                if one.unannounced:
                    one.unannounced = False
                    return
            if self._turnover.announced() or any(group.leaving and group.culprit() for group in self._groups):
                return
            if not self._groups:
                self.publish(nameless_death())
            elif self._name_by is None:
                self._name_by = self._clock() + NOTICE_PATIENCE
                self._wake()

    def status(self, rank: EngineRank) -> RankStatus | None:
        """How the engine of a rank is; None for one that was started elsewhere. Asks it nothing.

        What it says the listeners have been told: so an engine that serves can be used at once.
        """
        with self._lock:
            found = self._find(rank)
            return None if found is None else found[0].status(found[1], self._clock())

    @property
    def restarts(self) -> bool:
        """Whether engines that die may get successors."""
        return self._policy.policy != "never"

    def lost(self, rank: EngineRank, error: EngineDeadError) -> None:
        """An engine that was started elsewhere is taken for dead; nobody starts a successor here."""
        with self._lock:
            self.publish(EngineDied(rank, Generation(0), error))
            self.publish(EngineGivenUp(rank, error))

    def grow(self, rank: EngineRank) -> Attempt:
        """Start an engine of a new rank. EngineAdded or EngineUnborn of the same generation tells the outcome."""
        with self._lock:
            if self._find(rank):  # whoever asks has not heard of it yet
                raise UsageError(f"engine {rank} has come up just now, or is about to go; try again")
            return self._turnover.begin(rank)

    def let_go(self, rank: EngineRank, timeout: float) -> None:
        """End the engine of a rank for good, `timeout` seconds after SIGTERM. EngineLeft tells that it is gone."""
        with self._lock:
            if (found := self._find(rank)) is not None:
                found[0].let_go(self._clock() + timeout)
                self._wake()

    def stop(self, timeout: float) -> None:
        """End all children, and whatever is being started; they get `timeout` seconds together after SIGTERM."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._stopped = True
            attempts = [group.attempt for group in self._groups if group.attempt is not None]
            attempts += self._turnover.take_all()
            for attempt in attempts:
                attempt.cancel()
            self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT)
        started = [child for attempt in attempts for child in attempt.abandon(_JOIN_TIMEOUT)]
        shutdown.stop([*(one.child for one in self._ranks()), *self._turnover.departed, *started], timeout)
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
        wanted = {one.child.sentinel for one in self._ranks() if not one.ended} - {-1}
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
            dues += [one.kill_at for one in self._ranks() if one.kill_at is not None and not one.ended]
            for group in self._groups:
                if group.restarts.state is RankState.BACKING_OFF and group.ended:
                    dues.append(now + group.restarts.remaining(now))
            return min(dues)

    def _ranks(self) -> list[Rank]:
        return [one for group in self._groups for one in group.ranks]

    def _find(self, rank: EngineRank) -> tuple[Group, Rank] | None:
        return next(((group, one) for group in self._groups for one in group.ranks if one.rank == rank), None)

    def _look_at(self, group: Group, now: float) -> None:
        for one in group.ranks:
            if not one.ended and one.child.poll() is not None:
                one.ended = True
        if group.running and (culprit := group.culprit()) is not None:
            self._bury(group, culprit, now)
        for one in group.ranks:
            if one.kill_at is not None and not one.ended and now >= one.kill_at:
                one.kill_at = None
                one.child.kill()
                if group.running:  # even SIGKILL takes its time where the kernel is stuck; nobody shall wait for that
                    self._bury(group, one, now)
        if group.attempt is not None:
            self._settle(group, group.attempt, now)
        if group.ended and (generation := group.restarts.start(now)) is not None:
            self._begin(group, generation, now)
        if group.leaving and group.ended and group.attempt is None:
            self._groups = [other for other in self._groups if other is not group]
            self._turnover.departs(group)

    def _bury(self, group: Group, culprit: Rank, now: float) -> None:
        """An engine has ended, or is about to, and its group with it; decide what follows."""
        death = culprit.death()
        for one in group.ranks:
            if not one.ended:
                one.kill_at = now + ENDING_TIMEOUT if one is culprit else now
            one.unannounced = one is not culprit or self._name_by is None
        self._name_by = None
        group.died_at = now
        generation = group.restarts.generation
        decision = group.restarts.died(death.status, now)
        error = death.dead_error(culprit.rank, generation, decision)
        errors = {one.rank: bereft_error(one.child.name, one.rank, error) for one in group.ranks}
        errors[culprit.rank] = error
        self._mourn(group, generation, errors, culprit.notice(error), death.how(), decision)

    def _mourn(
        self,
        group: Group,
        generation: Generation,
        errors: Mapping[EngineRank, EngineDeadError],
        words: str,
        cause: str,
        decision: Decision,
    ) -> None:
        """Tell of a death, once in the log, and to listeners for each rank that it concerns."""
        group.cause = cause
        if self.restarts:
            log.log(logging.WARNING if decision.restart else logging.ERROR, "%s", words)
        for rank, error in errors.items():
            if decision.restart:
                error.retry_after = decision.delay + group.start_took
            self.publish(EngineDied(rank, generation, error, decision.restart))
        if not decision.restart:
            for rank, error in errors.items():
                self.publish(EngineGivenUp(rank, error))

    def _begin(self, group: Group, generation: Generation, now: float) -> None:
        """Start the successors."""
        if self._replace is None or self._stopped:
            return

        def progressed(progress: StartupProgress) -> None:
            self.publish(EngineProgress(progress.rank, generation, progress.sight.phase, progress.sight.percent))

        previous = {one.rank: one.child for one in group.ranks}
        group.attempt = Attempt(self._replace, generation, previous, self._wake, progressed)
        attempts, budget = group.restarts.deaths, self._policy.budget
        log.warning("%s is started again: generation %d, %d of %d", group.name, generation, attempts, budget)
        for rank in previous:
            self.publish(EngineStarted(rank, generation, attempts, budget, group.cause))
        group.started_at = now
        try:
            group.attempt.begin()
        except (OSError, RuntimeError) as error:
            group.attempt = None
            self._failed(group, generation, error, now)

    def _settle(self, group: Group, attempt: Attempt, now: float) -> None:
        """See what has become of the start of successors."""
        if (outcome := attempt.take()) is None:
            return
        group.attempt = None
        group.start_took = now - group.started_at
        if group.leaving:
            group.born_too_late(outcome, now)
            return
        if isinstance(outcome, Exception):
            self._failed(group, attempt.generation, outcome, now)
            return
        away = now - group.died_at
        group.restarts.serves()
        for one in group.ranks:
            one.replaced_by(outcome[one.rank].child, now)
        log.warning("%s serves again after %.1f s: generation %d", group.name, away, attempt.generation)
        for one in group.ranks:
            ready = outcome[one.rank].ready
            self.publish(EngineReplaced(one.rank, attempt.generation, ready, one.child.pid, away))

    def _failed(self, group: Group, generation: Generation, cause: Exception, now: float) -> None:
        """Successors did not come up."""
        known = cause
        if not isinstance(known, StartupError):
            why = f"{type(cause).__name__}: {cause}"
            known = StartupError(f"{group.name} could not be started again: {why}", phase="spawn")
        decision = group.restarts.died(known.exit_status, now)
        errors = {one.rank: unborn_error(known, one.rank, generation, decision) for one in group.ranks}
        self._mourn(group, generation, errors, next(iter(errors.values())).message, known.message, decision)

    def _judge(self, seconds: float) -> None:
        """Let the watch look at everybody who runs."""
        if self._watch is None:
            return
        for group in self._groups:
            for one in group.ranks:
                if not group.running or any(other.ended or other.stuck for other in group.ranks):
                    continue
                verdict = self._watch(one.rank, group.restarts.generation, one.child, seconds)
                if verdict is not None:
                    self._stalled(one, group.restarts.generation, verdict)

    def _stalled(self, one: Rank, generation: Generation, verdict: Verdict) -> None:
        with self._lock:
            one.stuck = verdict.words
            self.publish(EngineStalled(one.rank, generation, verdict.words))
        one.stacks = one.child.dump_stack()
        where = f"; its threads stood here:\n{one.stacks}" if one.stacks else ""
        log.error("%s is stuck: %s; it is killed%s", one.child.name, verdict.words, where)
        one.child.kill()
        with self._lock:
            one.kill_at = self._clock() + 1.0

    def publish(self, event: Event) -> None:
        """Tell every listener, unless this was stopped; also for others who know of engines. Any thread."""
        with self._lock:
            if not self._stopped:
                self._listeners.tell(event)

    def _wake(self) -> None:
        with self._lock:
            self._wakeup.set()
