"""With what a process ends whose engines are gone, or that was asked to stop."""

from __future__ import annotations

from typing import Protocol

from muro.child.signals import STOP_SIGNALS
from muro.errors import CrashLoopError, EngineDeadError
from muro.wire.failure import ExitCode

ASKED = (0, *(-number for number in STOP_SIGNALS))
"""Exit statuses of a child that was asked to stop by somebody else."""


class Healthy(Protocol):
    """A client, or what stands on one."""

    def check_health(self) -> None: ...


def exit_code(client: Healthy, *, asked: bool = False) -> ExitCode:
    """STOPPED as long as an engine serves or will; else what to end with. An engine that was `asked` to stop together
    with us has not failed."""
    try:
        client.check_health()
    except CrashLoopError:
        return ExitCode.CRASH_LOOP
    except EngineDeadError as error:
        stopped = error.restarting or (asked and error.exit_status in ASKED)
        return ExitCode.STOPPED if stopped else ExitCode.ENGINE_FAILED
    return ExitCode.STOPPED
