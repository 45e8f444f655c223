"""Ways for an engine to die, and what its callers must be told of each."""

import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple


class Harm(NamedTuple):
    fault: str
    """What to inject; empty: the process is killed from outside."""
    told: str
    """What every error must say."""
    status: int
    """How the process ends."""
    announced: bool = False
    """Whether the engine itself notices; then the error may come before the process has ended."""


HARMS = {
    "SIGKILL": Harm("", "killed by SIGKILL", -signal.SIGKILL),
    "SIGSEGV": Harm("operation:signal=SIGSEGV", "killed by SIGSEGV", -signal.SIGSEGV),
    "SIGABRT": Harm("operation:signal=SIGABRT", "killed by SIGABRT", -signal.SIGABRT),
    "exit 7": Harm("operation:exit=7", "exit code 7", 7),
    "exit 0": Harm("operation:exit=0", "exit code 0 although nobody had asked", 0),
    "step": Harm("step:raise", "FaultError: a fault was asked for in step", 10, True),
    "executor": Harm("operation:executor", "the executor was asked to fail", 10, True),
    "input thread": Harm("operation:thread=muro-receiver", "the input thread died", 10, True),
    "output thread": Harm("operation:thread=muro-sender", "the output thread died", 10, True),
}

Call = Callable[..., Any]


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
