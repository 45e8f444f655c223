"""Why a child has ended, in words: a value taken from its remains, and the errors made of it. Pure."""

from __future__ import annotations

import signal

import msgspec

from muro.errors import LOG_FOLLOWS, ConfigError, CrashLoopError, EngineDeadError, MissingExtraError, StartupError
from muro.launch.restart import Decision
from muro.wire.failure import ExitCode, FailureRecord, describe_exit

UNKNOWN_STATUS = 255
"""Stands for an exit status that another part of this program collected before we could."""
_WRONG_SETTINGS = (ConfigError.code, MissingExtraError.code)


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a child that has ended, or that has failed and is about to."""

    name: str
    """In people's words, for instance "engine 0 (echo)"."""
    pid: int
    status: int | None
    """Exit code, or minus the signal number; None if it still runs."""
    phase: str
    """What it was doing."""
    seconds: float
    """How long it lived."""
    failure: FailureRecord | None = None
    log_tail: str = ""
    stuck: str = ""
    """What was seen of it when it was killed because it did nothing any more."""
    lost: str = ""
    """Why nothing of it can be seen any more, if it ran on another machine and is out of sight."""
    where: str = ""
    """The machine on which it ran, if that is another one."""

    def how(self) -> str:
        """How it ended and where: "killed by SIGKILL (...) in phase loading after 3.2 s (pid 123)"."""
        if self.lost:
            end = f"it is lost: {self.lost}"
        elif self.stuck:
            end = f"it was stuck: {self.stuck}; so it was killed"
        elif self.status == 0:
            end = "it left with exit code 0 although nobody had asked it to"
        elif self.status == UNKNOWN_STATUS:
            end = "it ended, and its exit status was collected by another part of this program"
        elif self.status is None:
            end = "it failed"
        elif self.status < 0:
            end = f"it was {describe_exit(self.status)}"
        else:
            end = f"it ended with {describe_exit(self.status)}"
        return f"{end} in phase {self.phase!r} after {self.seconds:.1f} s ({self._which()})"

    def _which(self) -> str:
        return f"pid {self.pid} on {self.where}" if self.where else f"pid {self.pid}"

    def details(self) -> str:
        """The failure that it reported, if any, and the last lines of its log; a wrong setting says all by itself."""
        cause = f". Cause: {self.failure.kind}: {self.failure.message}" if self.failure else ""
        if self._is_wrongly_set():
            return cause
        log = f"{LOG_FOLLOWS}\n{self.log_tail}" if self.log_tail else ". It wrote no log"
        return cause + log

    def _is_wrongly_set(self) -> bool:
        return self.failure is not None and self.failure.code in _WRONG_SETTINGS

    def startup_error(self, rank: int | None, why: str = "") -> StartupError:
        """The error of a start that failed with this child; `why` replaces the account of how it ended."""
        # One that has reported a wrong setting may take its time to end; whether to try again does not hang on that.
        status = ExitCode.CONFIG if self.status is None and self._is_wrongly_set() else self.status
        return StartupError(
            f"{self.name} did not start: {why or self.how()}{self.details()}",
            rank=rank,
            phase=self.phase,
            pid=self.pid,
            exit_status=status,
            log_tail=self.log_tail,
        )

    def dead_error(self, rank: int, generation: int, decision: Decision | None = None) -> EngineDeadError:
        """The error of an engine that had been ready, and what is decided to follow."""
        again = f" (generation {generation})" if generation else ""
        follows, kind, retry_after = "", EngineDeadError, None
        if decision is not None and decision.restart:
            follows, retry_after = "; it is being restarted", decision.delay
        elif decision is not None and decision.why:
            follows = f"; it is not started again: {decision.why}"
            kind = CrashLoopError if decision.crash_loop else EngineDeadError
        return kind(
            f"{self.name}{again} has died: {self.how()}{follows}{self.details()}",
            rank=rank,
            generation=generation,
            phase=self.phase,
            pid=None if self.lost else self.pid,  # nobody knows how it ended, so it is no process's own doing
            exit_status=self.status,
            log_tail=self.log_tail,
            restarting=decision is not None and decision.restart,
            retry_after=retry_after,
            stuck=bool(self.stuck),
        )


def unborn_error(cause: StartupError, rank: int, generation: int, decision: Decision) -> EngineDeadError:
    """The error of a successor that did not come up, and what is decided to follow."""
    kind = CrashLoopError if decision.crash_loop else EngineDeadError
    why = "" if decision.restart else f"{decision.why}; it is not started again. The last: "
    return kind(
        f"{why}generation {generation}: {cause.message}",
        rank=rank,
        generation=generation,
        phase=cause.phase,
        pid=cause.pid,
        exit_status=cause.exit_status,
        log_tail=cause.log_tail,
        restarting=decision.restart,
    )


def bereft_error(name: str, rank: int, cause: EngineDeadError) -> EngineDeadError:
    """The error of a lockstep engine that is ended because another one of its group has died of `cause`."""
    return type(cause)(
        f"{name} cannot go on without the others of its lockstep group and is ended with them: {cause.message}",
        rank=rank,
        generation=cause.generation,
        phase=cause.phase,
        exit_status=-signal.SIGKILL,
        restarting=cause.restarting,
        retry_after=cause.retry_after,
    )
