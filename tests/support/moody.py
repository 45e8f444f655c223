"""An engine whose starts go as a file says, each start in its turn: `moods=PATH`.

A mood per line: "fine", "raise", "exit=N", "hang"; the first is the first start's. When none is left, all are fine.
"""

import os
import threading
import time
from pathlib import Path

import msgspec

from muro.engine.interface import Report, StepResult, TakeAborts
from muro.engines.echo import EchoEngine


class MoodyOptions(msgspec.Struct, frozen=True):
    """`moods`: path of the file. `step_ms`: length of a step."""

    moods: str = ""
    step_ms: float = 1.0


class MoodyEngine(EchoEngine):
    def __init__(self, options: MoodyOptions, report: Report) -> None:
        super().__init__()
        self._step = options.step_ms / 1000
        report("weights", 50)
        mood = take_mood(Path(options.moods)) if options.moods else "fine"
        if mood == "raise":
            raise RuntimeError("not in the mood")
        if mood == "hang":
            threading.Event().wait()
        if mood.startswith("exit="):
            os._exit(int(mood.removeprefix("exit=")))

    def step(self, take_aborts: TakeAborts) -> StepResult:
        time.sleep(self._step)  # noqa: TID251 - a step takes time
        return super().step(take_aborts)


def take_mood(path: Path) -> str:
    first, *rest = path.read_text().splitlines() or ["fine"]
    path.write_text("\n".join(rest))
    return first
