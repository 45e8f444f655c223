"""StepperEngine: an engine that does one step after the other: schedule, execute, sample, book.

The door of this room: a model that fulfils `Executor` becomes an engine of `muro.engine.interface`.

With `async_scheduling` and an executor that returns futures, the next step is scheduled while one runs, and starts as
soon as the tokens of that one are chosen; whatever is done with its outputs happens while the next one runs. What comes
out is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from muro.core.blocks import BlockPool
from muro.core.control import ExecutorControl
from muro.core.executor import Executor
from muro.core.grammar import Workshop
from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput
from muro.core.pooling import TASK
from muro.core.preprocess import Bounds, preprocess
from muro.core.request import Request
from muro.core.sampling import NO_TOKEN, Sampled, Sampler
from muro.core.sampling.settings import ThinkingMarkers
from muro.core.scheduler import Scheduler
from muro.core.step import ScheduledStep
from muro.engine.interface import Engine, EngineInfo, FailureCallback, Memory, StepResult, TakeAborts, operation
from muro.errors import ConfigError, InternalError, RequestError
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

_LAST_WAIT = 5.0
"""Seconds that a step under way gets to end when the engine is shut down."""


class _Flight(msgspec.Struct):
    """A step that the executor has, and what comes of it."""

    step: ScheduledStep
    result: ModelRunnerOutput | Future[ModelRunnerOutput]

    def land(self) -> ModelRunnerOutput:
        """Wait for the result. Raises what the executor raised."""
        return self.result.result() if isinstance(self.result, Future) else self.result


class StepperEngine(Engine):
    """Continuous batching over one executor, which it owns and shuts down.

    Args:
        executor: a loaded model.
        config: order and bounds of what runs.
        clock: monotonic seconds, for the events of requests.
        sampler: chooses the tokens; None: one for the model.
        grammars: compiles what structured output asks for, and is closed at the end; None: there is none.
    """

    def __init__(
        self,
        executor: Executor,
        config: SchedulerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        sampler: Sampler | None = None,
        grammars: Workshop | None = None,
    ) -> None:
        self._executor = executor
        self._grammars = grammars
        self._config = config or SchedulerConfig()
        self._model = model = executor.info()
        blocks = BlockPool(model.num_blocks, model.block_size)
        # The last token of an output is never computed, so it needs no room in the cache.
        max_model_len = min(model.max_model_len, model.num_blocks * model.block_size + 1)
        self._bounds = Bounds(
            max_model_len=max_model_len,
            vocab_size=model.vocab_size,
            max_logprobs=self._config.max_logprobs,
            by_priority=self._config.scheduling_policy == "priority",
            thinking=_thinking(self._config, model.vocab_size),
            max_pooled_len=min(max_model_len, model.num_blocks * model.block_size),
            pooling=model.pooling,
            hidden_size=model.hidden_size,
        )
        self._scheduler = Scheduler(self._config, blocks, clock)
        self._control = ExecutorControl(executor, blocks)
        self._sampler = sampler or Sampler(model.vocab_size)
        self._flight: _Flight | None = None
        self._restart_due = False

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
            supported_tasks=("generate",) if self._model.pooling is None else ("generate", TASK),
            understands_resumed_tokens=True,
            honours_sampling_options=True,
            releasable=self._control.releasable,
        )

    def preprocess(self, request: EngineCoreRequest) -> Request:
        return preprocess(request, self._bounds, self._grammars)

    def add_request(self, request_id: str, prepared: Request) -> None:
        prepared.request_id = request_id
        self._scheduler.add(prepared)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self._scheduler.abort(request_ids)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        """Do one step. If the executor raises, nothing is booked: the same work is planned again."""
        scheduler = self._scheduler
        flight = self._flight or self._launch(scheduler.schedule())
        self._flight = None
        if flight is None:
            return StepResult(scheduler.take_ended(), executed=False)
        ahead = scheduler.schedule() if self._config.async_scheduling and not self._restart_due else None
        try:
            result = flight.land()
        except BaseException as error:
            for step in (ahead, flight.step):
                if step is not None:
                    scheduler.cancel(step)
            if self._has_left(flight.step, error):
                return StepResult(scheduler.take_ended())
            raise
        scheduler.abort(take_aborts())
        sampled = self._choose(flight.step, result)
        if flight.step.num_prompt_rows:
            self._read_prompts(flight.step, result)
        if flight.step.num_hidden_rows:
            self._pool(flight.step, result.hidden)
        outputs = scheduler.update(flight.step, sampled)
        if self._restart_due:
            self._restart_due = False
            scheduler.preempt_all()
        if ahead is not None:
            scheduler.settle(ahead)
            self._flight = self._launch(ahead)
        tokens = flight.step.plan.total_tokens
        return StepResult(scheduler.take_ended() + outputs, prompt_tokens=tokens - len(outputs))

    def has_work(self) -> bool:
        return self._flight is not None or len(self._scheduler) > 0

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    @property
    def num_preemptions(self) -> int:
        """How often a request had to leave and wait again."""
        return self._scheduler.num_preemptions

    def phase(self) -> str | None:
        return None if self._flight else self._scheduler.phase()

    def on_executor_failure(self, callback: FailureCallback) -> None:
        self._executor.on_failure(callback)

    def shutdown(self) -> None:
        if self._grammars is not None:
            self._grammars.close()
        if self._flight is not None and isinstance(self._flight.result, Future):
            wait([self._flight.result], _LAST_WAIT)
        self._executor.shutdown()

    @operation
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Use nothing of what was computed so far for later requests; with `reset_running_requests` for none at all.

        Always true: running requests may keep what they have without anybody else finding it.
        """
        self._scheduler.reset_prefix_cache()
        if reset_running_requests:
            if self._flight is None:
                self._scheduler.preempt_all()
            else:
                self._restart_due = True
        return True

    @operation
    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a listed method of the executor; one answer, of the one worker. `timeout` cannot cut it short."""
        return [self._control.call(method, args or [], kwargs or {})]

    def execute_dummy_batch(self) -> None:
        """Compute a token for nobody, unless a step is under way, which is as good."""
        if self._flight is None:
            self._control.forward()

    def release_memory(self, kind: Memory) -> None:
        """See `EngineCore.release_memory`. A step under way is waited for, but comes to nothing."""
        flight, self._flight = self._flight, None
        if flight is not None:
            with suppress(Exception):  # it is raised again when the same is computed again
                flight.land()
            self._scheduler.cancel(flight.step)
        if kind == "kv_cache":
            self._restart_due = False
            self._scheduler.reset_prefix_cache()
            self._scheduler.preempt_all()
        self._control.release(kind)

    def restore_memory(self, kind: Memory) -> None:
        self._control.restore(kind)

    def _has_left(self, step: ScheduledStep, error: BaseException) -> bool:
        """Whether the error is that of a request of the step, and of nobody: it was aborted while the step ran."""
        if not isinstance(error, RequestError) or error.request_id is None:
            return False
        failed = [request for request in step.requests if request.request_id == error.request_id]
        return bool(failed) and failed[0].is_finished

    def _launch(self, step: ScheduledStep) -> _Flight | None:
        """Give a step to the executor. What it raises is found in the flight."""
        if not step.requests:
            return None
        try:
            return _Flight(step, self._executor.execute(step.plan))
        except BaseException as error:
            failed: Future[ModelRunnerOutput] = Future()
            failed.set_exception(error)
            return _Flight(step, failed)

    def _choose(self, step: ScheduledStep, result: ModelRunnerOutput) -> Sampled:
        """The next token for each planned row, by the sampler or, where the best is wanted, by the executor."""
        given = result.token_ids
        if given is None:
            draws = self._scheduler.draws(step)
            self._check(result, len(draws))
            return self._sampler.sample(result.logits, draws)
        sequences = step.plan.sequences
        flags = [sequence.best_only for sequence in sequences]
        if len(given) != sum(flags) or (given and not (min(given) >= NO_TOKEN and max(given) < self._model.vocab_size)):
            raise InternalError(
                f"the executor gave {len(given)} token ids; {sum(flags)} of the vocabulary were planned"
            )
        if len(given) == len(sequences):
            return Sampled(given, [None] * len(given))
        flags = [flag for sequence in sequences for flag in (sequence.best_only,) * sequence.num_logits]
        others = [draw for draw, flag in zip(self._scheduler.draws(step), flags, strict=True) if not flag]
        self._check(result, len(others))
        sampled = self._sampler.sample(result.logits, others)
        best, drawn = iter(given), zip(sampled.token_ids, sampled.logprobs, strict=True)
        rows = [(next(best), None) if flag else next(drawn) for flag in flags]
        return Sampled([row[0] for row in rows], [row[1] for row in rows])

    def _read_prompts(self, step: ScheduledStep, result: ModelRunnerOutput) -> None:
        """Take the log-probabilities of prompts, of each position once: a preempted one is computed again."""
        logits, left_out = result.logits, result.token_ids is not None
        decodes = step.plan.sequences[: step.num_decodes]
        row = sum(not (left_out and sequence.best_only) for sequence in decodes)
        for sequence, request in step.chunks():
            begin, row = row, row + (0 if left_out and sequence.best_only else sequence.num_logits)
            prompt = request.prompt_logprobs
            if prompt is None or not request.wants_prompt_rows or not sequence.num_logits:
                continue
            end = sequence.num_computed_tokens + len(sequence.token_ids)
            known = len(prompt) - (end - sequence.num_logits)
            following = request.token_ids[len(prompt) + 1 : min(end + 1, request.num_prompt_tokens)]
            self._sampler.read_prompt(prompt, logits[begin + known : begin + known + len(following)], following)

    def _pool(self, step: ScheduledStep, hidden: NDArray[np.float32] | None) -> None:
        """Hand the hidden states to the requests that they were computed for."""
        width, planned = self._model.hidden_size, sum(sequence.num_hidden for sequence in step.plan.sequences)
        if hidden is None or hidden.shape != (planned, width) or hidden.dtype != np.float32:
            found = "no hidden states" if hidden is None else f"{hidden.dtype} hidden states of shape {hidden.shape}"
            raise InternalError(f"the executor gave {found}; float32 of {(planned, width)} were planned")
        row = 0
        for sequence, request in step.chunks():
            rows, row = hidden[row : row + sequence.num_hidden], row + sequence.num_hidden
            if len(rows) and request.pooling is not None and not request.is_finished:
                request.pooling.add(sequence.num_computed_tokens + len(sequence.token_ids), rows)

    def _check(self, result: ModelRunnerOutput, num_rows: int) -> None:
        logits, expected = result.logits, (num_rows, self._model.vocab_size)
        if logits.shape != expected or logits.dtype != np.float32:
            raise InternalError(
                f"the executor gave {logits.dtype} logits of shape {logits.shape}; float32 of {expected} were planned"
            )


def _thinking(config: SchedulerConfig, vocab_size: int) -> ThinkingMarkers | None:
    start, end = config.thinking_markers()
    if not start:
        return None
    if min(start + end) < 0 or max(start + end) >= vocab_size:
        raise ConfigError(f"tokens that begin and end thinking must lie in 0 ... {vocab_size - 1}")
    return ThinkingMarkers(start, end)
