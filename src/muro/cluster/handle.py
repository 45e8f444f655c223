"""A rank that runs on another machine, seen from the front-end: a `launch.handle.ChildHandle`.

One thread per rank ("muro-rank-N") waits for the place, has the engine started there, and asks for reports until the
engine has ended or is out of sight; then it gives the place back. What others ask is answered from the last report, so
no caller waits for a network. Invariants:

- What is known changes under one lock, which is never held during a call to the cluster.
- The engine has ended for good as soon as the sentinel turns readable: whatever of it still runs out of sight has lost
  its front-end, its place and its host, each of which ends it.
- `kill` is heard within `KILL_PATIENCE` also by a host that does not answer: its place is taken from it.
- In a forked process a handle does nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from muro.cluster.place import AwayError, Place
from muro.cluster.report import Hosted, Order, Report, moved
from muro.errors import EngineDeadError, StartupError
from muro.launch.death import UNKNOWN_STATUS, Death
from muro.launch.logs import show_record
from muro.transport.wakeup import Wakeup
from muro.wire.failure import FailureRecord
from muro.wire.progress import Progress

log = logging.getLogger(__name__)

STEP = 0.25
"""Seconds of one look whether there is an answer, or somebody wants something else."""
SILENT_STEPS = 24
"""So many looks without any answer to a question, and the rank is out of sight."""
AWAY_STEPS = 8
"""The same from the moment on when the host could not be reached."""
KILL_PATIENCE = 2.0
_CLOSE_TIMEOUT = 5.0
_STACK_STEPS = 8


class RankHandle:
    """One engine of one generation.

    Args:
        order: what to start.
        place: where.
        clock: seconds, monotonic.
    """

    def __init__(self, order: Order, place: Place[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self.name = order.name
        self._order = order
        self._place = place
        self._clock = clock
        self._owner = os.getpid()
        self._born = clock()
        self._ended_at: float | None = None
        self._hosted: Hosted | None = None
        self._shift_ns = 0
        self._report = Report(progress=Progress(generation=order.generation))
        self._status: int | None = None
        self._lost = ""
        self._kill_by: float | None = None
        self._closed = False
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name=f"muro-rank-{order.name}", daemon=True)

    def open(self) -> RankHandle:
        """Begin. Raises StartupError."""
        self._wakeup.open()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._wakeup.close()
            raise StartupError(f"no thread could be made to follow {self.name}: {error}", phase="spawn") from error
        return self

    @property
    def pid(self) -> int:
        return 0 if self._hosted is None else self._hosted.pid

    @property
    def sentinel(self) -> int:
        return self._wakeup.fileno()

    def poll(self) -> int | None:
        with self._lock:
            return UNKNOWN_STATUS if self._lost else self._status

    def wait(self, timeout: float | None = None) -> bool:
        return not self._mine() or self._ended.wait(timeout)

    def terminate(self) -> None:
        if self._hosted is None:
            self.kill()
        else:
            self._tell("terminate")

    def kill(self) -> None:
        with self._lock:
            if self._kill_by is None:
                self._kill_by = self._clock() + KILL_PATIENCE
            hosted = self._hosted is not None
        if hosted:
            self._tell("kill")

    def is_stopped(self) -> bool:
        return self._report.stopped

    def failure(self) -> FailureRecord | None:
        return self._report.failure

    def dump_stack(self) -> str:
        if self._hosted is None or self._ended.is_set() or not self._mine():
            return ""
        with contextlib.suppress(EngineDeadError, AwayError):
            call = self._place.call("dump_stack")
            for _ in range(_STACK_STEPS):
                if (answer := self._place.answer(call, STEP)) is not None:
                    text = answer.decode("utf-8", "replace")
                    with self._lock:
                        self._report = msgspec.structs.replace(self._report, log_tail=text or self._report.log_tail)
                    return text
        return ""

    def progress(self) -> Progress:
        return self._report.progress

    def death(self) -> Death:
        with self._lock:
            report, ended = self._report, self._clock() if self._ended_at is None else self._ended_at
            return Death(
                name=self.name,
                pid=self.pid,
                status=self._status,
                phase=(report.failure.phase if report.failure else "") or report.progress.phase,
                seconds=ended - self._born,
                failure=report.failure,
                log_tail=report.log_tail,
                lost=self._lost,
                where=self._place.where,
            )

    def close(self) -> None:
        with self._lock:
            if self._closed or not self._mine():
                return
            self._closed = True
        self.kill()
        self._ended.wait(_CLOSE_TIMEOUT)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)
        with self._lock:
            self._wakeup.close()

    def _run(self) -> None:
        lost, status = "", None
        try:
            status = self._follow()
        except EngineDeadError as error:
            lost = error.message
        except AwayError as error:
            lost = f"its host on {self._place.where} cannot be reached: {error}"
        except Exception as error:
            log.exception("following %s met a bug of ours", self.name)
            lost = f"{type(error).__name__}: {error}"
        with self._lock:
            if lost and self._kill_by is not None:
                lost, status = "", -int(signal.SIGKILL)
            self._lost, self._status, self._ended_at = lost, status, self._clock()
            self._ended.set()
            self._wakeup.set()
        self._place.leave()

    def _follow(self) -> int:
        """The life of the engine; returns its exit status. Raises EngineDeadError if it is out of sight."""
        place = self._place
        self._enter("asking for a place")
        place.ask()
        self._enter(f"waiting for {place.words}")
        while not place.is_given(STEP):
            self._check_wanted()
        self._enter("starting its host")
        place.occupy()
        answer = self._ask("start", msgspec.msgpack.encode(self._order), steps=None)
        hosted = msgspec.msgpack.decode(answer, type=Hosted)
        with self._lock:
            self._shift_ns = time.monotonic_ns() - hosted.now_ns
            self._hosted = hosted
            killed = self._kill_by is not None
        if killed:
            self._tell("kill")
        log.info("%s runs on %s, pid %d", self.name, place.where, hosted.pid)
        while (status := self._hear(self._next_report())) is None:
            self._check_wanted()
        return status

    def _next_report(self) -> Report:
        """The next report; a host that could not be reached gets a little longer to be there again."""
        try:
            answer = self._ask("report", steps=SILENT_STEPS)
        except AwayError as first:
            answer = self._ask_again(str(first))
        return msgspec.msgpack.decode(answer, type=Report)

    def _ask_again(self, why: str) -> bytes:
        for _ in range(AWAY_STEPS):
            self._check_wanted()
            self._ended.wait(STEP)
            with contextlib.suppress(AwayError):
                return self._ask("report", steps=AWAY_STEPS)
        raise EngineDeadError(f"its host on {self._place.where} cannot be reached any more: {why}")

    def _hear(self, report: Report) -> int | None:
        for record in report.records:
            show_record(record, self.name)
        if report.dropped:
            log.warning("%d records of %s were dropped: it logs more than is fetched", report.dropped, self.name)
        with self._lock:
            shown = moved(report.progress, self._shift_ns)
            self._report = msgspec.structs.replace(report, progress=shown, records=[])
        return report.status

    def _ask(self, method: str, *arguments: bytes, steps: int | None) -> bytes:
        """The answer to a question, however long that takes, or in so many steps."""
        call = self._place.call(method, *arguments)
        silent = 0
        while (answer := self._place.answer(call, STEP)) is None:
            self._check_wanted()
            silent += 1
            if steps is not None and silent >= steps:
                raise EngineDeadError(f"its host on {self._place.where} has said nothing for {steps * STEP:g} s")
        return answer

    def _check_wanted(self) -> None:
        """Raises EngineDeadError if it is to end and nobody is there who would see to that."""
        with self._lock:
            if self._kill_by is not None and (self._hosted is None or self._clock() >= self._kill_by):
                raise EngineDeadError("it was killed before it answered")

    def _tell(self, method: str) -> None:
        if self._mine() and not self._ended.is_set():
            with contextlib.suppress(EngineDeadError):
                self._place.call(method)

    def _enter(self, phase: str) -> None:
        with self._lock:
            shown = Progress(generation=self._order.generation, phase=phase, phase_since_ns=time.monotonic_ns())
            self._report = msgspec.structs.replace(self._report, progress=shown)

    def _mine(self) -> bool:
        return os.getpid() == self._owner

    def __repr__(self) -> str:
        return f"<RankHandle {self.name!r} on {self._place.where or 'no machine yet'}, status {self.poll()}>"
