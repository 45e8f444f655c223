"""One engine under examination: what a conformance case works with.

`Watched` stands between host and engine and notes what the engine hands out, because a host hides much of what
an engine does wrong: it drops outputs for ids that it does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import msgspec

from muro.engine.interface import Collective, EngineCore, EngineInfo, FailureCallback, Memory, StepResult, TakeAborts
from muro.testing.harness import StepHarness
from muro.wire.output import FinishReason
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

PATIENCE_STEPS = 500
"""Steps with a forward after which a request that has not ended is lost."""
PATIENCE_SECONDS = 120.0
"""The same in time, for steps without a forward."""


class ContractError(AssertionError):
    """An engine does not do what the contract demands."""


class Emitted(msgspec.Struct, frozen=True):
    """One output as it left the engine, and in which of its steps."""

    step: int
    request_id: str
    tokens: int
    finish: FinishReason | None


class Watched:
    """An engine that keeps a record of its outputs; fulfils EngineCore by asking the engine inside."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self.steps = 0
        self.emitted: list[Emitted] = []

    def info(self) -> EngineInfo:
        return self._engine.info()

    def preprocess(self, request: EngineCoreRequest) -> Any:
        return self._engine.preprocess(request)

    def add_request(self, request_id: str, prepared: Any) -> None:
        self._engine.add_request(request_id, prepared)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self._engine.abort_requests(request_ids)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        self.steps += 1
        result = self._engine.step(take_aborts)
        for output in result.outputs:
            tokens = len(output.new_token_ids)
            self.emitted.append(Emitted(self.steps, output.request_id, tokens, output.finish_reason))
        return result

    def has_work(self) -> bool:
        return self._engine.has_work()

    def stats(self) -> SchedulerStats | None:
        return self._engine.stats()

    def execute_dummy_batch(self) -> None:
        self._engine.execute_dummy_batch()

    def collective(self) -> Collective | None:
        return self._engine.collective()

    def phase(self) -> str | None:
        return self._engine.phase()

    def release_memory(self, kind: Memory) -> None:
        self._engine.release_memory(kind)

    def restore_memory(self, kind: Memory) -> None:
        self._engine.restore_memory(kind)

    def on_executor_failure(self, callback: FailureCallback) -> None:
        self._engine.on_executor_failure(callback)

    def shutdown(self) -> None:
        self._engine.shutdown()


class Trial:
    """An engine, watched, in a harness.

    Attributes:
        engine: the engine itself, for what concerns it alone.
        harness: the engine behind a host.
    """

    def __init__(self, engine: EngineCore) -> None:
        self.engine = engine
        self._watched = Watched(engine)
        self.harness = StepHarness(self._watched)

    def emitted(self, request_id: str | None = None) -> list[Emitted]:
        """What the engine itself handed out, for one request or for all."""
        return [e for e in self._watched.emitted if request_id in (None, e.request_id)]

    def step(self) -> None:
        """One step, if there is work."""
        if self.harness.host.has_work():
            self.harness.step()

    def start(self, request_id: str) -> None:
        """Step until the request has got something, at most until it has ended."""
        self.until([request_id], lambda: bool(self.harness.outputs(request_id)))

    def finish(self, *request_ids: str) -> None:
        """Step until these requests have ended."""
        self.until(request_ids, lambda: all(self.harness.finishes(i) for i in request_ids))

    def until(self, request_ids: Iterable[str], done: Callable[[], bool]) -> None:
        """Step until `done`; raises ContractError that names the requests if that does not happen."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        forwards = 0
        while not done():
            if not self.harness.host.has_work():
                self._lost(request_ids, "has_work() is False")
            forwards += self.harness.step()
            if forwards >= PATIENCE_STEPS or time.monotonic() > deadline:
                self._lost(request_ids, f"{forwards} steps did not do it")

    def _lost(self, request_ids: Iterable[str], why: str) -> NoReturn:
        left = [i for i in request_ids if not self.harness.finishes(i)]
        raise ContractError(f"request {', '.join(map(repr, left))} does not end: {why}")


def expect(condition: object, seen: str) -> None:
    """Raises ContractError that says what was `seen` instead, unless the condition holds."""
    if not condition:
        raise ContractError(seen)
