"""Requests: front-end -> engine (protocol sections 7 to 9), in the newest layout.

Array structs are positional: never reorder, only append. `wire.releases` says how older layouts differ.
Integers are bounded to 64 bits here, so that a wrong one ends its request and nothing else.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec

from muro.wire.arrays import Tensor

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

QUEUE_TIMEOUT = "muro_queue_timeout"
"""Key of `extra_args`: within how many seconds of reaching the engine a request must run; else it ends in error."""
RESUMED_TOKENS = "muro_resumed_tokens"
"""Key of `SamplingParams.extra_args`: how many tokens at the end of the prompt are output of an earlier attempt.

They count as output: positions, limits and everything that looks at the output so far goes on behind them. An engine
that understands this says so by the feature of the same name in its ready response.
"""
SAMPLING_OPTIONS = "muro_sampling_options"
"""Feature in the ready response: each option of `SamplingParams` is honoured or refused by name, none is ignored.

An engine of ours without it makes its tokens in some other way than by sampling, as an echo does; what foreign engines
do is theirs to say.
"""


class OutputKind(enum.IntEnum):
    """What a front-end hands to its reader; engines always send deltas."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class StructuredOutputsParams(msgspec.Struct, omit_defaults=True):
    """Constraint on the output: exactly one of the first six is set."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    backend: str | None = msgspec.field(default=None, name="_backend")
    backend_was_auto: bool = msgspec.field(default=False, name="_backend_was_auto")


class RepetitionDetection(msgspec.Struct):
    """Stop when a pattern of `min..max_pattern_size` tokens repeats `min_count` times."""

    max_pattern_size: Int64 = 0
    min_pattern_size: Int64 = 0
    min_count: Int64 = 0


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """How to choose tokens and when to stop (protocol section 8); a map, default keys may be missing.

    The engine has no tokenizer: the front-end fills `eos_token_id`, `all_stop_token_ids` and
    `bad_words_token_ids`. `temperature` below 1e-5 is greedy; `top_k` 0 or -1 is off; `max_tokens`
    None means up to the model's length.
    """

    n: Int64 = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int64 = 0
    min_p: float = 0.0
    seed: Int64 | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[Int64] | None = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    max_tokens: Int64 | None = 16
    min_tokens: Int64 = 0
    logprobs: Int64 | None = None
    prompt_logprobs: Int64 | None = None
    logprob_token_ids: list[Int64] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE
    skip_clone: bool = False
    output_text_buffer_length: Int64 = 0
    eos_token_id: Int64 | None = msgspec.field(default=None, name="_eos_token_id")
    all_stop_token_ids: list[Int64] = msgspec.field(default_factory=list, name="_all_stop_token_ids")
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[Int64, float] | None = None
    allowed_token_ids: list[Int64] | None = None
    extra_args: dict[str, Any] | None = None
    routed_experts_prompt_start: Int64 = 0
    bad_words: list[str] | None = msgspec.field(default_factory=list)
    bad_words_token_ids: list[list[Int64]] | None = msgspec.field(default=None, name="_bad_words_token_ids")
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: Int64 | None = None
    repetition_detection: RepetitionDetection | None = None
    stream_interval: Int64 | None = None
    trace_decode_token_ids: list[Int64] | None = None
    watermarking: bool | None = None
    prompt_logprob_token_ids: Tensor | None = None
    prompt_logprob_start: Int64 | None = None
    watermarking_skipped: bool = msgspec.field(default=False, name="_watermarking_skipped")


class PoolingParams(msgspec.Struct, array_like=True):
    """How to pool a prompt into a vector (protocol section 9.1)."""

    use_activation: bool | None = None
    dimensions: Int64 | None = None
    step_tag_id: Int64 | None = None
    returned_token_ids: list[Int64] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: list[Any] | None = None
    extra_kwargs: dict[str, Any] | None = None
    output_kind: OutputKind = OutputKind.FINAL_ONLY
    late_chunking_params: list[Any] | None = None


class LoRARequest(msgspec.Struct, array_like=True):
    """An adapter, in the layout of release 0.32 and later; older ones have a position 4 more."""

    lora_name: str
    lora_int_id: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class PlaceholderRange(msgspec.Struct):
    """Where an item's placeholder tokens lie in the prompt."""

    offset: Int64
    length: Int64
    is_embed: Tensor | None = None


class MultiModalItem(msgspec.Struct):
    """One keyword argument of the model for an item.

    `data` is None, a number, a `Tensor`, or a nested list of these. `field` is `[name, kwargs]`: "batched",
    "shared" or "flat", and how the items of a batch are put together (section 9.3).
    """

    data: Any
    field: list[Any]


class MultiModalFeature(msgspec.Struct):
    """One image, sound or the like; `data` is nil when the engine has it cached (section 9.3)."""

    data: dict[str, MultiModalItem] | None
    modality: str
    identifier: str
    mm_position: PlaceholderRange
    mm_hash: str | None = None


class EngineCoreRequest(msgspec.Struct, array_like=True):
    """One request for an engine: payload of ADD (protocol section 7), layout of 0.31 and later.

    Exactly one of `sampling_params` and `pooling_params` is set. `arrival_time` is in Unix seconds.
    """

    request_id: str
    prompt_token_ids: list[TokenId] | None
    mm_features: list[MultiModalFeature] | None = None
    sampling_params: SamplingParams | None = None
    pooling_params: PoolingParams | None = None
    arrival_time: float = 0.0
    lora_request: LoRARequest | None = None
    cache_salt: str | None = None
    data_parallel_rank: Int64 | None = None
    prompt_embeds: Tensor | None = None
    prompt_is_token_ids: list[bool] | None = None
    client_index: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    current_wave: Int64 = 0
    priority: Int64 = 0
    trace_headers: dict[str, str] | None = None
    resumable: bool = False
    external_req_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    abort_immediately: bool = False
    session_id: str | None = None
    kv_hints: dict[str, Any] | None = None
