"""StepperEngine: an engine that does one step after the other: schedule, execute, sample, book.

The door of this room: a model that fulfils `Executor` becomes an engine of `muro.engine.interface`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from muro.core.blocks import BlockPool
from muro.core.executor import Executor
from muro.core.plan import ModelRunnerOutput
from muro.core.preprocess import Bounds, preprocess
from muro.core.request import Request
from muro.core.sampling import Sampler
from muro.core.scheduler import Scheduler, SchedulerConfig
from muro.engine.interface import Engine, EngineInfo, FailureCallback, StepResult, TakeAborts
from muro.errors import InternalError
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats


class StepperEngine(Engine):
    """Continuous batching over one executor, which it owns and shuts down.

    Args:
        executor: a loaded model.
        config: bounds of one step.
        clock: monotonic seconds, for the events of requests.
    """

    def __init__(
        self,
        executor: Executor,
        config: SchedulerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._config = config or SchedulerConfig()
        self._model = model = executor.info()
        blocks = BlockPool(model.num_blocks, model.block_size)
        # The last token of an output is never computed, so it needs no room in the cache.
        max_model_len = min(model.max_model_len, model.num_blocks * model.block_size + 1)
        self._bounds = Bounds(
            max_model_len=max_model_len, vocab_size=model.vocab_size, max_logprobs=self._config.max_logprobs
        )
        self._scheduler = Scheduler(self._config, blocks, clock)
        self._sampler = Sampler(model.vocab_size)

    def info(self) -> EngineInfo:
        """What the model holds; `max_model_len` is lowered to what one sequence can have in the cache."""
        return EngineInfo(
            max_model_len=self._bounds.max_model_len,
            num_gpu_blocks=self._model.num_blocks,
            block_size=self._model.block_size,
            kv_cache_size_tokens=self._model.num_blocks * self._model.block_size,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            dtype=self._model.dtype,
            understands_resumed_tokens=True,
        )

    def preprocess(self, request: EngineCoreRequest) -> Request:
        return preprocess(request, self._bounds)

    def add_request(self, request_id: str, prepared: Request) -> None:
        prepared.request_id = request_id
        self._scheduler.add(prepared)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self._scheduler.abort(request_ids)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        """Do one step. If the executor raises, nothing is booked: the same work is planned again."""
        scheduler = self._scheduler
        plan = scheduler.schedule()
        if not plan.sequences:
            return StepResult(scheduler.take_expired(), executed=False)
        result = self._executor.execute(plan)
        scheduler.abort(take_aborts())
        draws = scheduler.draws(plan)
        self._check(result, len(draws))
        outputs = scheduler.update(plan, self._sampler.sample(result.logits, draws))
        return StepResult(scheduler.take_expired() + outputs, prompt_tokens=plan.total_tokens - len(draws))

    def has_work(self) -> bool:
        return len(self._scheduler) > 0

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def on_executor_failure(self, callback: FailureCallback) -> None:
        self._executor.on_failure(callback)

    def shutdown(self) -> None:
        self._executor.shutdown()

    def _check(self, result: ModelRunnerOutput, num_rows: int) -> None:
        logits, expected = result.logits, (num_rows, self._model.vocab_size)
        if logits.shape != expected or logits.dtype != np.float32:
            raise InternalError(
                f"the executor gave {logits.dtype} logits of shape {logits.shape}; float32 of {expected} were planned"
            )
