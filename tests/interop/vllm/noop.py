"""An executor for vLLM whose forward pass does nothing: each scheduled request gets one and the same token, at once.

With it two walls can be compared: `--distributed-executor-backend tests.interop.vllm.noop.NoopExecutor`, or the engine
option of that name. It follows vLLM's public class `Executor` and runs in the engine's own process, so that no worker's
queue is measured.
"""

from concurrent.futures import Future
from functools import cached_property
from typing import Any

import torch
from vllm.v1.executor import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

TOKEN = 5
MEMORY = 1 << 30
"""Bytes of cache that are said to be there; none is allocated."""


class NoopExecutor(Executor):
    """Schedules real blocks of a cache that does not exist."""

    def _init_executor(self) -> None:
        self._pending: ModelRunnerOutput | None = None

    @cached_property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def check_health(self) -> None:
        """It cannot fail."""

    def shutdown(self) -> None:
        """There is nothing to stop."""

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        block_size = self.vllm_config.cache_config.block_size
        spec = FullAttentionSpec(block_size, num_kv_heads=1, head_size=32, dtype=torch.float32)
        return [{"layer": spec}]

    def determine_available_memory(self) -> list[int]:
        return [MEMORY]

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> Any:
        return None

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: tuple[Any, ...] = (), kwargs: Any = None, non_block: bool = False
    ) -> Any:
        return _given([None], non_block)

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        ids = list(scheduler_output.num_scheduled_tokens)
        places = {request_id: place for place, request_id in enumerate(ids)}
        output = ModelRunnerOutput(ids, places, sampled_token_ids=[[TOKEN] for _ in ids])
        return _given(output, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        raise NotImplementedError("execute_model has sampled already")


def _given(value: Any, non_block: bool) -> Any:
    if not non_block:
        return value
    future: Future[Any] = Future()
    future.set_result(value)
    return future
