"""With what a process ends, by the state of its engines."""

from __future__ import annotations

import pytest

from muro.crew.ending import exit_code
from muro.errors import CrashLoopError, EngineDeadError
from muro.wire.failure import ExitCode


class Client:
    def __init__(self, error: EngineDeadError | None) -> None:
        self._error = error

    def check_health(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "asked", "code"),
    [
        (None, False, ExitCode.STOPPED),
        (EngineDeadError("x", restarting=True), False, ExitCode.STOPPED),
        (EngineDeadError("x", exit_status=-9), False, ExitCode.ENGINE_FAILED),
        (EngineDeadError("x", exit_status=-9), True, ExitCode.ENGINE_FAILED),
        (EngineDeadError("x", exit_status=-15), False, ExitCode.ENGINE_FAILED),
        (EngineDeadError("x", exit_status=-15), True, ExitCode.STOPPED),
        (EngineDeadError("x", exit_status=0), True, ExitCode.STOPPED),
        (CrashLoopError("x", exit_status=-15), True, ExitCode.CRASH_LOOP),
    ],
)
def test_exit_codes(error: EngineDeadError | None, asked: bool, code: ExitCode) -> None:
    assert exit_code(Client(error), asked=asked) is code
