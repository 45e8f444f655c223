"""An echo that takes its time: `--engine paced --engine-option step_ms=20`, to load-test what stands in front."""

from __future__ import annotations

import time

import msgspec

from muro.engine.interface import StepResult, TakeAborts
from muro.engines.echo import EchoEngine


class PacedOptions(msgspec.Struct, frozen=True):
    """`step_ms`: length of a step in milliseconds. `burn`: compute meanwhile instead of sleeping."""

    step_ms: float = 10.0
    burn: bool = False


class PacedEngine(EchoEngine):
    """Repeats prompts like `EchoEngine`; each step takes `step_ms`, however many requests are in it."""

    def __init__(self, options: PacedOptions) -> None:
        super().__init__()
        self._step_seconds = options.step_ms / 1000
        self._burn = options.burn
        self._due = 0.0

    def step(self, take_aborts: TakeAborts) -> StepResult:
        # Steps begin at fixed distances, as those of a device do that is never kept waiting.
        self._due = max(self._due + self._step_seconds, time.monotonic() + self._step_seconds / 2)
        if self._burn:
            while time.monotonic() < self._due:
                pass
        else:
            time.sleep(max(0.0, self._due - time.monotonic()))
        return super().step(take_aborts)
