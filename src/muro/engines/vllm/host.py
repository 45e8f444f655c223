"""Drives vLLM's `EngineCore`: loading, steps, and the operations that it answers itself.

vLLM imports here, so nothing else imports this file before an engine is made. Its sockets, its busy loop and its pauses
are not used; how a request ends, and who hears of it, is the host's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from vllm.lora.request import LoRARequest as TheirLoRARequest
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.core import EngineCore as TheirCore
from vllm.v1.executor import Executor

from muro.engine.interface import Engine, EngineInfo, FailureCallback, Report, StepResult, TakeAborts, operation
from muro.engines.vllm.settings import engine_config
from muro.engines.vllm.translate import OutputTranslator, RequestTranslator, scheduler_stats
from muro.errors import ConfigError, EngineDeadError, InvalidRequestError, RequestError
from muro.wire.ops import KVCacheGroupMetadata
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest, LoRARequest
from muro.wire.stats import SchedulerStats


def load(model: str, options: dict[str, Any], report: Report) -> VllmEngine:
    """Load the model. Raises ConfigError for what vLLM refuses, and what its loading raises."""
    report("reading the configuration", 5)
    config = engine_config(model, options)
    report("loading the model", 10)
    failure = ExecutorFailure()
    try:
        core = TheirCore(config, Executor.get_class(config), log_stats=True, executor_fail_callback=failure)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"engine 'vllm': {error}") from error
    tokenizer = None
    if not config.model_config.skip_tokenizer_init:
        report("loading the tokenizer", 95)
        tokenizer = cached_tokenizer_from_config(config.model_config)
    return VllmEngine(core, tokenizer, failure)


class ExecutorFailure:
    """What vLLM calls when a worker has died, from a thread of its own; passes it on to who listens."""

    def __init__(self) -> None:
        self._listener: FailureCallback | None = None
        self._happened = False

    def listen(self, listener: FailureCallback) -> None:
        """Hear of it, even if it has happened already."""
        self._listener = listener
        if self._happened:
            self()

    def __call__(self) -> None:
        self._happened = True
        if self._listener is not None:
            self._listener(EngineDeadError("a worker of vLLM has died; the log says why"))


class VllmEngine(Engine):
    """The engine; made by `load`. Receiver thread: `preprocess`; loop thread: the rest.

    Args:
        core: vLLM's `EngineCore`.
        tokenizer: as vLLM reads it, for its checks of structured output; None if it has none.
        failure: was given to `core`.
    """

    def __init__(self, core: Any, tokenizer: Any, failure: ExecutorFailure) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._failure = failure
        self._to_theirs = RequestTranslator()
        self._to_ours = OutputTranslator()
        self._info = _describe(core)
        self._stats: SchedulerStats | None = None
        self._executed = True

    def info(self) -> EngineInfo:
        return self._info

    def preprocess(self, request: EngineCoreRequest) -> Any:
        """vLLM's request. What its own front-end would refuse is refused here: a grammar that is none, say."""
        config = self._core.vllm_config
        vocab_size = config.model_config.get_vocab_size()
        if (worst := max(request.prompt_token_ids or (), default=0)) >= vocab_size:
            raise InvalidRequestError(f"prompt: there is no token {worst}; the model has {vocab_size}")
        try:
            theirs = self._to_theirs(request)
            if theirs.sampling_params is not None:
                theirs.sampling_params.verify(
                    config.model_config,
                    config.speculative_config,
                    config.structured_outputs_config,
                    self._tokenizer,
                )
            prepared, _ = self._core.preprocess_add_request(theirs)
        except RequestError:
            raise
        except (ValueError, TypeError, msgspec.MsgspecError, NotImplementedError) as error:
            raise InvalidRequestError(str(error)) from error
        except LookupError as error:  # its checks take for granted what a structural tag must have
            raise InvalidRequestError(f"vLLM finds no {error} in it") from error
        return prepared

    def add_request(self, request_id: str, prepared: Any) -> None:
        prepared.request_id = request_id  # the host may have renamed it
        self._core.add_request(prepared)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        if ids := list(request_ids):
            self._core.abort_requests(ids)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        self.abort_requests(take_aborts())
        batches, executed = self._core.step_fn()
        self._core.post_step(executed)
        # vLLM gives no chance between forward and bookkeeping; the host drops what the step says of these.
        self.abort_requests(take_aborts())
        outputs: list[EngineCoreOutput] = []
        for batch in (batches or {}).values():
            outputs += map(self._to_ours.output, batch.outputs)
            if batch.scheduler_stats is not None:
                self._stats = scheduler_stats(batch.scheduler_stats)
        self._executed = executed
        # How many tokens of prompts were computed vLLM does not say; that some were is what counts.
        return StepResult(outputs, executed, prompt_tokens=int(executed and not outputs))

    def has_work(self) -> bool:
        return bool(self._core.scheduler.has_requests() or self._core.batch_queue)

    def stats(self) -> SchedulerStats | None:
        stats, self._stats = self._stats, None
        if stats is None and (theirs := self._core.scheduler.make_stats()) is not None:
            return scheduler_stats(theirs)
        return stats

    def phase(self) -> str | None:
        """Requests that wait without a forward pass wait for their grammar to be compiled."""
        return None if self._executed or not self._core.scheduler.get_request_counts()[1] else "grammar"

    def execute_dummy_batch(self) -> None:
        self._core.execute_dummy_batch()

    def on_executor_failure(self, callback: FailureCallback) -> None:
        self._failure.listen(callback)

    def shutdown(self) -> None:
        self._core.shutdown()

    @operation
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        return bool(self._core.reset_prefix_cache(reset_running_requests, reset_connector))

    @operation
    def reset_mm_cache(self) -> None:
        self._core.reset_mm_cache()

    @operation
    def reset_encoder_cache(self) -> None:
        self._core.reset_encoder_cache()

    @operation
    def get_kv_cache_group_metadata(self) -> list[KVCacheGroupMetadata]:
        return msgspec.convert(self._core.get_kv_cache_group_metadata(), list[KVCacheGroupMetadata])

    @operation
    def add_lora(self, lora_request: LoRARequest) -> bool:
        theirs = TheirLoRARequest(lora_request.lora_name, lora_request.lora_int_id, lora_request.lora_path)
        return bool(self._core.add_lora(theirs))

    @operation
    def pin_lora(self, lora_id: int) -> bool:
        return bool(self._core.pin_lora(lora_id))

    @operation
    def remove_lora(self, lora_id: int) -> bool:
        return bool(self._core.remove_lora(lora_id))

    @operation
    def list_loras(self) -> list[int]:
        return sorted(self._core.list_loras())


def _describe(core: Any) -> EngineInfo:
    config = core.vllm_config
    blocks, block_size = config.cache_config.num_gpu_blocks or 0, config.cache_config.block_size
    return EngineInfo(
        max_model_len=config.model_config.max_model_len,
        num_gpu_blocks=blocks,
        block_size=block_size,
        kv_cache_size_tokens=blocks * block_size if blocks else None,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        supported_tasks=tuple(core.get_supported_tasks()),
        honours_sampling_options=True,
    )
