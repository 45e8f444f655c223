"""An engine that does what a test of the host says, and the question whether anything of it is left."""

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from muro.engine.interface import EngineInfo, StepResult, TakeAborts, operation
from muro.engines.echo import EchoEngine
from muro.testing.harness import StepHarness
from muro.wire.output import EngineCoreOutput
from muro.wire.stats import SchedulerStats


class Scripted(EchoEngine):
    """An echo that counts what it is asked and fails on command."""

    def __init__(self, *, max_model_len: int = 2**20) -> None:
        super().__init__()
        self.max_model_len = max_model_len
        self.added: list[str] = []
        self.aborted: list[str] = []
        self.refuse_add: Exception | None = None
        self.fail_step: Exception | None = None
        self.ghosts: list[EngineCoreOutput] = []
        self.future: Future[Any] = Future()

    @property
    def held(self) -> set[str]:
        return set(self._left)

    def info(self) -> EngineInfo:
        return EngineInfo(max_model_len=self.max_model_len)

    def add_request(self, request_id: str, request: Any) -> None:
        self.added.append(request_id)
        super().add_request(request_id, request)
        if self.refuse_add is not None:
            raise self.refuse_add

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        ids = list(request_ids)
        self.aborted += ids
        super().abort_requests(ids)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        if self.fail_step is not None:
            self.abort_requests(take_aborts())
            error, self.fail_step = self.fail_step, None
            raise error
        result = super().step(take_aborts)
        return StepResult(result.outputs + self.ghosts, executed=bool(result.outputs))

    def stats(self) -> SchedulerStats:
        return SchedulerStats(num_running_reqs=len(self._left))

    @operation
    def later(self) -> Future[Any]:
        return self.future

    @operation
    def explode(self) -> None:
        raise ValueError("boom")


def assert_nothing_left(harness: StepHarness, engine: Scripted) -> None:
    assert harness.host.num_live == 0
    assert harness.admission.requests == 0
    assert not engine.held
    assert not harness.host._by_wire
