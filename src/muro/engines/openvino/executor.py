"""The model on the CPU as an `Executor`: a step plan becomes the arrays that paged attention reads.

Owns the key/value cache and the compiled model; decides nothing. `infer` lets go of the interpreter lock, so other
threads run during the forward pass. Called from one thread.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import openvino as ov

from muro.core.executor import ExecutorInfo
from muro.core.plan import ModelRunnerOutput, SchedulerOutput, SequencePlan
from muro.engine.interface import FailureCallback
from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError, InvalidRequestError
from muro.models.config import ModelConfig


class OpenVINOExecutor:
    """Runs steps on a compiled model; made by `create_executor`.

    Args:
        request: an infer request whose cache inputs are set.
        cache: the arrays behind those inputs; OpenVINO does not keep them alive.
        info: what the model and its cache can hold.
        apart: whether the forward pass runs in a thread of its own, so that others can work meanwhile.
    """

    def __init__(self, request: ov.InferRequest, cache: list[Any], info: ExecutorInfo, *, apart: bool = False) -> None:
        self._request: ov.InferRequest | None = request
        self._cache = cache
        self._info = info
        self._thread = ThreadPoolExecutor(1, "forward") if apart else None

    def info(self) -> ExecutorInfo:
        return self._info

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        """See `Executor.execute`. The arrays are views of the model's outputs, overwritten by the next call."""
        request = self._request
        if request is None:
            raise RuntimeError("the executor was shut down")
        for name, array in step_inputs(plan, self._info).items():
            request.set_tensor(name, ov.Tensor(array))
        return self._forward(request) if self._thread is None else self._thread.submit(self._forward, request)

    def _forward(self, request: ov.InferRequest) -> ModelRunnerOutput:
        request.infer()
        logits = request.get_tensor("logits").data.reshape(-1, self._info.vocab_size)
        if not self._info.hidden_size:
            return ModelRunnerOutput(logits)
        return ModelRunnerOutput(logits, request.get_tensor("hidden").data.reshape(-1, self._info.hidden_size))

    def on_failure(self, callback: FailureCallback) -> None:
        """Nothing to report: the model computes in this process, and `execute` raises if it cannot."""

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()  # a step under way ends first: it writes into the cache
        self._request = None
        self._cache = []


def create_executor(
    compiled: ov.CompiledModel,
    config: ModelConfig,
    options: OpenVINOOptions,
    pooling: Literal["mean", "last"] | None = None,
) -> OpenVINOExecutor:
    """Allocate the key/value cache within its memory budget and put the executor together.

    Args:
        compiled: the model, see `compile_model`.
        config: what its directory says of it.
        options: memory, lengths, threads.
        pooling: what its directory says of embeddings, for the option "auto".

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
    cache, block_size = _allocate(compiled, request, options)
    info = ExecutorInfo(
        max_model_len=_max_model_len(config, options, len(cache[0]) * block_size),
        num_blocks=len(cache[0]),
        block_size=block_size,
        vocab_size=config.vocab_size,
        dtype="float32",
        hidden_size=hidden_size,
        pooling=pooling,
    )
    return OpenVINOExecutor(request, cache, info, apart=options.async_scheduling)


def _allocate(compiled: ov.CompiledModel, request: ov.InferRequest, options: OpenVINOOptions) -> tuple[list[Any], int]:
    """The key/value cache, given to the request: an array of blocks per layer and kind; and the tokens of a block."""
    caches = {
        port.any_name: port for port in compiled.inputs if port.any_name.startswith(("key_cache.", "value_cache."))
    }
    shapes = {name: [dim.get_length() for dim in list(port.partial_shape)[1:]] for name, port in caches.items()}
    # Shapes are [kv heads, tokens, head size]; with u8, scales lie behind the tokens of keys and the sizes of values.
    block_bytes = sum(port.element_type.size * int(np.prod(shapes[name])) for name, port in caches.items())
    num_blocks = (options.cache_memory_mb << 20) // block_bytes
    cache = []
    for name, port in caches.items():
        # Fresh zero pages: they take no memory until a block is used, and unused lanes of a block hold no NaN.
        zeros = np.zeros([num_blocks, *shapes[name]], dtype=port.element_type.to_dtype())
        request.set_tensor(name, ov.Tensor(zeros, shared_memory=True))
        cache.append(zeros)
    return cache, shapes["value_cache.0"][1]


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
