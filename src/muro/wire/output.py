"""Outputs: engine -> front-end (protocol section 10), in the newest layout.

Array structs are positional: never reorder, only append. `wire.releases` says how older layouts differ.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from muro.wire.arrays import Tensor
from muro.wire.stats import PrefillStats, SchedulerStats


class FinishReason(enum.IntEnum):
    """Why a request ended; its presence marks a request's last output."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class EventType(enum.IntEnum):
    """What happened to a request in the scheduler."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class EngineCoreEvent(msgspec.Struct):
    """A happening at `timestamp`, in the engine's monotonic seconds."""

    type: EventType
    timestamp: float


class Logprobs(msgspec.Struct, array_like=True):
    """Log-probabilities (protocol section 10.3).

    `ids` and `values` have shape [positions, k + 1]: column 0 is the sampled (or prompt) token, columns
    1 ... k the top k in descending order. `ranks` has shape [positions]: 1-based vocabulary rank of column 0.
    """

    ids: Tensor
    values: Tensor
    ranks: Tensor
    cu: list[int] | None = None


class SamplingMask(msgspec.Struct, array_like=True):
    """Tokens that sampling could choose from (0.28 and later)."""

    token_ids: Tensor
    offsets: Tensor | None = None
    cu: list[int] | None = None


class OutputError(msgspec.Struct):
    """Why a request ended with ERROR (0.33 and later)."""

    code: str
    message: str
    retryable: bool = False


class EngineCoreOutput(msgspec.Struct, array_like=True, gc=False):
    """News of one request: a delta. A `finish_reason` makes it the last one."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Logprobs | None = None
    new_prompt_logprobs_tensors: Logprobs | None = None
    pooling_output: Tensor | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    events: list[EngineCoreEvent] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    trace_headers: dict[str, str] | None = None
    prefill_stats: PrefillStats | None = None
    routed_experts: Tensor | None = None
    num_nans_in_logits: int = 0
    mm_cache_miss_hashes: list[str] | None = None
    new_sampling_mask: SamplingMask | None = None
    spec_decode_metrics: dict[str, Any] | None = None
    prompt_token_id_logprobs: Tensor | None = None
    error: OutputError | None = None


class UtilityOutput(msgspec.Struct, array_like=True):
    """Answer to a utility call: a failure message, or the pair `[type_info, value]`."""

    call_id: int
    failure_message: str | None = None
    result: Any = None


class EngineCoreOutputs(msgspec.Struct, array_like=True):
    """One message of an engine to one client: a request batch, or a utility result, or a wave notice.

    `timestamp` is in the engine's monotonic seconds, the clock of the events.
    """

    engine_index: int = 0
    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    finished_requests: list[str] | None = None
    wave_complete: int | None = None
    start_wave: int | None = None
    weight_version: str | None = None
