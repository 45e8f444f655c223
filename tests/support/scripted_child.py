"""A child process as its supervisor sees it, that lives and dies as a test says. No process."""

from __future__ import annotations

import itertools

from muro.launch.death import Death
from muro.wire.failure import FailureRecord
from muro.wire.progress import Progress

_pids = itertools.count(1000)


class ScriptedChild:
    """Stands where `launch.spawn.Child` would stand. `immortal`: not even SIGKILL ends it."""

    def __init__(self, name: str = "engine 0 (scripted)", *, immortal: bool = False) -> None:
        self.name = name
        self.pid = next(_pids)
        self.sentinel = -1
        self.status: int | None = None
        self.record: FailureRecord | None = None
        self.did: list[str] = []
        self._immortal = immortal

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float | None = None) -> bool:
        return self.status is not None

    def is_stopped(self) -> bool:
        return False

    def failure(self) -> FailureRecord | None:
        return self.record

    def progress(self) -> Progress:
        return Progress(phase="serving", percent=100)

    def death(self) -> Death:
        return Death(
            name=self.name, pid=self.pid, status=self.status, phase="serving", seconds=1.0, failure=self.record
        )

    def terminate(self) -> None:
        self.did.append("terminate")

    def kill(self) -> None:
        if self.status is None:
            self.did.append("kill")
            if not self._immortal:
                self.status = -9

    def dump_stack(self) -> str:
        self.did.append("dump")
        return "in step"

    def close(self) -> None:
        self.did.append("close")
