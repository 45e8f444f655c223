"""An executor that computes as late as it may: when somebody waits for the result."""

from __future__ import annotations

from concurrent.futures import Future

from muro.core.executor import Executor, ExecutorInfo
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.engine.interface import FailureCallback


class _Late(Future[ModelRunnerOutput]):
    def __init__(self, inner: Executor, plan: SchedulerOutput) -> None:
        super().__init__()
        self._work = (inner, plan)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        if not self.done():
            inner, plan = self._work
            try:
                result = inner.execute(plan)
                assert isinstance(result, ModelRunnerOutput)
                self.set_result(result)
            except Exception as error:
                self.set_exception(error)
        return super().result(timeout)


class LaggingExecutor:
    """Whatever the scheduler does between `execute` and the result, the inner executor sees it done.

    If a plan changed, or its blocks, the results of an executor that notices are others.
    """

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._last: Future[ModelRunnerOutput] | None = None

    def info(self) -> ExecutorInfo:
        return self._inner.info()

    def execute(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        assert self._last is None or self._last.done(), "the step before is still under way"
        self._last = _Late(self._inner, plan)
        return self._last

    def on_failure(self, callback: FailureCallback) -> None:
        self._inner.on_failure(callback)

    def shutdown(self) -> None:
        self._inner.shutdown()
