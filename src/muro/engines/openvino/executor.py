"""The model on the CPU as an `Executor`: a step plan becomes the arrays that paged attention reads.

Owns the key/value cache and the compiled model, and can do without either while nothing runs; decides nothing. `infer`
lets go of the interpreter lock, so other threads run during the forward pass. Called from one thread.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openvino as ov

from muro.core.executor import ExecutorInfo
from muro.core.plan import ModelRunnerOutput, SchedulerOutput, SequencePlan
from muro.engine.interface import FailureCallback, Memory, operation
from muro.engines.openvino.cache import CacheMemory
from muro.engines.openvino.compiled import give_memory_back
from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError, InvalidRequestError
from muro.models.config import ModelConfig

_TOLD = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "INFERENCE_NUM_THREADS", "NUM_STREAMS", "ENABLE_CPU_PINNING")
"""Properties that `runtime` tells."""


class OpenVINOExecutor:
    """Runs steps on a compiled model; made by `create_executor`.

    Args:
        request: an infer request that uses the cache. It alone keeps the model alive.
        cache: keys and values.
        info: what the model and its cache can hold.
        reload: gives the same model again, so that it can be let go of meanwhile.
        apart: whether the forward pass runs in a thread of its own, so that others can work meanwhile.
    """

    def __init__(
        self,
        request: ov.InferRequest,
        cache: CacheMemory,
        info: ExecutorInfo,
        *,
        reload: Callable[[], ov.CompiledModel] | None = None,
        apart: bool = False,
    ) -> None:
        self._request: ov.InferRequest | None = request
        self._cache: CacheMemory | None = cache
        self._info = info
        self._reload = reload
        self._thread = ThreadPoolExecutor(1, "forward") if apart else None

    def info(self) -> ExecutorInfo:
        return self._info

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        """See `Executor.execute`. The arrays are views of the model's outputs, overwritten by the next call."""
        request = self._request
        if request is None:
            raise RuntimeError("the executor was shut down, or its weights were released")
        for name, array in step_inputs(plan, self._info).items():
            request.set_tensor(name, ov.Tensor(array))
        return self._forward(request) if self._thread is None else self._thread.submit(self._forward, request)

    def _forward(self, request: ov.InferRequest) -> ModelRunnerOutput:
        request.infer()
        logits = request.get_tensor("logits").data.reshape(-1, self._info.vocab_size)
        if not self._info.hidden_size:
            return ModelRunnerOutput(logits)
        return ModelRunnerOutput(logits, request.get_tensor("hidden").data.reshape(-1, self._info.hidden_size))

    @property
    def releasable(self) -> tuple[Memory, ...]:
        return ("kv_cache",) if self._reload is None else ("kv_cache", "weights")

    def release_memory(self, kind: Memory) -> None:
        """See `Releasing`. The weights are those of the compiled model; the file that they came from stays."""
        if kind == "weights":
            self._request = None
        elif self._cache is not None:
            self._cache.release()
        give_memory_back()

    def restore_memory(self, kind: Memory) -> None:
        """See `Releasing`. Raises what `compile_model` raises, and ConfigError if the model has become another one."""
        # Pages of the cache come back by themselves, as they are used.
        if kind == "weights" and self._reload is not None and self._cache is not None and self._request is None:
            request = self._reload().create_infer_request()
            self._cache.give_to(request)
            self._request = request

    @operation
    def memory(self) -> dict[str, Any]:
        """Bytes: `resident` memory of the whole process, and `cache`, what keys and values may take of it."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "resident": pages * mmap.PAGESIZE,
            "cache": 0 if self._cache is None else self._cache.num_bytes,
            "weights_loaded": self._request is not None,
        }

    @operation
    def runtime(self) -> dict[str, str]:
        """OpenVINO's version and the properties that the model was compiled with, as text."""
        found = {"openvino": str(ov.__version__)}
        if self._request is not None:
            compiled = self._request.get_compiled_model()
            found |= {name: str(compiled.get_property(name)) for name in _TOLD}
        return found

    def on_failure(self, callback: FailureCallback) -> None:
        """Nothing to report: the model computes in this process, and `execute` raises if it cannot."""

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()  # a step under way ends first: it writes into the cache
        self._request = None
        self._cache = None


def create_executor(
    compiled: ov.CompiledModel,
    config: ModelConfig,
    options: OpenVINOOptions,
    pooling: Literal["mean", "last"] | None = None,
    reload: Callable[[], ov.CompiledModel] | None = None,
) -> OpenVINOExecutor:
    """Allocate the key/value cache within its memory budget and put the executor together.

    Args:
        compiled: the model, see `compile_model`.
        config: what its directory says of it.
        options: memory, lengths, threads.
        pooling: what its directory says of embeddings, for the option "auto".
        reload: compiles it once more, for an engine that gives its weights back while it sleeps.

    Raises:
        ConfigError: the cache cannot hold a sequence of `max_model_len` tokens, or the model's logits do not fit its
            vocabulary.
    """
    widths = {name: port.partial_shape[-1] for port in compiled.outputs for name in port.get_names()}
    if widths["logits"].is_static and widths["logits"].get_length() != config.vocab_size:
        raise ConfigError(
            f"the model scores {widths['logits'].get_length()} tokens, but config.json speaks of {config.vocab_size}"
        )
    hidden_size = widths["hidden"].get_length() if "hidden" in widths and widths["hidden"].is_static else 0
    if options.pooling == "none":
        pooling = None
    elif options.pooling != "auto":
        pooling = options.pooling
    if pooling is not None and not hidden_size:
        raise ConfigError(
            f"the graph of this model does not tell its hidden states, so there can be no {pooling} pooling"
        )
    request = compiled.create_infer_request()
    cache = CacheMemory(compiled, options.cache_memory_mb << 20)
    cache.give_to(request)
    info = ExecutorInfo(
        max_model_len=_max_model_len(config, options, cache.num_blocks * cache.block_size),
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        vocab_size=config.vocab_size,
        dtype="float32",
        hidden_size=hidden_size,
        pooling=pooling,
    )
    return OpenVINOExecutor(request, cache, info, reload=reload, apart=options.async_scheduling)


def step_inputs(plan: SchedulerOutput, info: ExecutorInfo) -> dict[str, Any]:
    """The model's inputs for one step; names, shapes and types as in `paged.py`.

    Raises:
        InvalidRequestError: a token id lies outside the vocabulary.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    past_lens: list[int] = []
    begins = [0]
    blocks: list[int] = []
    block_begins = [0]
    sampled: list[int] = []
    pooled: list[int] = []
    longest = 0
    for sequence in plan.sequences:
        past = sequence.num_computed_tokens
        end = past + len(sequence.token_ids)
        token_ids += sequence.token_ids
        positions += range(past, end)
        past_lens.append(past)
        begins.append(len(token_ids))
        blocks += sequence.block_table[: -(-end // info.block_size)]
        block_begins.append(len(blocks))
        longest = max(longest, end)
        sampled += range(len(token_ids) - sequence.num_logits, len(token_ids))
        if sequence.num_hidden:
            pooled += range(len(token_ids) - sequence.num_hidden, len(token_ids))
    # Outside the vocabulary the embedding would be read past its end.
    if min(token_ids) < 0 or max(token_ids) >= info.vocab_size:
        raise _outside_vocabulary(plan.sequences, info.vocab_size)
    inputs = {
        "input_ids": np.array(token_ids, dtype=np.int64),
        "position_ids": np.array(positions, dtype=np.int64),
        "past_lens": np.array(past_lens, dtype=np.int32),
        "subsequence_begins": np.array(begins, dtype=np.int32),
        "block_indices": np.array(blocks, dtype=np.int32),
        "block_indices_begins": np.array(block_begins, dtype=np.int32),
        "max_context_len": np.array(longest, dtype=np.int32),
        "sampled": np.array(sampled, dtype=np.int32),
    }
    if info.hidden_size:
        inputs["pooled"] = np.array(pooled, dtype=np.int32)
    return inputs


def _outside_vocabulary(sequences: list[SequencePlan], vocab_size: int) -> InvalidRequestError:
    for sequence in sequences:
        for token_id in sequence.token_ids:
            if not 0 <= token_id < vocab_size:
                what = f"token id {token_id} is outside the vocabulary of {vocab_size} tokens"
                return InvalidRequestError(what, request_id=sequence.request_id, param="prompt")
    raise AssertionError("unreachable: a token id was found outside the vocabulary")


def _max_model_len(config: ModelConfig, options: OpenVINOOptions, capacity: int) -> int:
    wanted = options.max_model_len or min(config.max_position_embeddings, capacity)
    if wanted > config.max_position_embeddings:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model was made for {config.max_position_embeddings} tokens"
        )
    if wanted > capacity or capacity == 0:
        raise ConfigError(
            f"cache_memory_mb={options.cache_memory_mb} holds {capacity} tokens, fewer than max_model_len, {wanted}: "
            "give the cache more memory, or lower max_model_len"
        )
    return wanted
