"""From an `EngineCoreRequest` to a `Request` that the scheduler can take without looking twice.

Every sampling option is honoured, or is none of the engine's business, or is refused by name: none is dropped
silently. The same holds for the request's own fields, save hints (`session_id`, `kv_hints`) and `reasoning_...`, of
which only whether thinking has ended concerns an engine, for structured output. What sampling options may be is in
`sampling/options.py`, what structured output may in `grammar/spec.py`.

Runs on the receiver thread, so it depends on nothing but the request, the fixed `Bounds`, and the `Workshop`, which
may be asked from any thread.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from muro.core.grammar import Compilation, GrammarState, Workshop, grammar_spec
from muro.core.pooling import PoolingType, checked_pooling
from muro.core.request import Request
from muro.core.sampling import PromptLogprobs, Sampling
from muro.core.sampling.options import checked_logprobs, demand, sampling
from muro.core.sampling.settings import ThinkingMarkers
from muro.errors import InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from muro.wire.request import QUEUE_TIMEOUT, RESUMED_TOKENS, EngineCoreRequest, PoolingParams, SamplingParams

HONOURED = frozenset(
    {
        "temperature", "top_k", "top_p", "min_p", "seed", "allowed_token_ids", "logit_bias",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words", "bad_words_token_ids",
        "logprobs", "logprob_token_ids", "prompt_logprobs", "skip_reading_prefix_cache",
        "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "eos_token_id", "all_stop_token_ids", "extra_args",
        "thinking_token_budget", "repetition_detection", "structured_outputs",
    }
)  # fmt: skip

LEFT_TO_OTHERS = frozenset(
    {
        # The front-end's: text, and how deltas are put together.
        "stop", "flat_logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens",
        "include_stop_str_in_output", "output_kind", "skip_clone", "output_text_buffer_length", "stream_interval",
        # Permissions and notes that ask nothing of an engine without watermarks.
        "watermarking", "watermarking_skipped",
    }
)  # fmt: skip

REFUSED: dict[str, Any] = {
    "n": 1,
    "routed_experts_prompt_start": 0,
    "trace_decode_token_ids": None,
    "prompt_logprob_token_ids": None,
    "prompt_logprob_start": 0,
}
"""Options that are not offered, each with the value that asks for nothing; None and empty containers never do."""

_REFUSED_FIELDS = ("lora_request", "mm_features", "prompt_embeds", "resumable", "abort_immediately")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must fit into. `max_model_len` counts prompt and output, and never exceeds the cache."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    by_priority: bool = False
    """Whether requests may have a priority."""
    thinking: ThinkingMarkers | None = None
    max_pooled_len: int = 0
    """The most tokens of a prompt that is pooled: nothing follows it."""
    pooling: PoolingType | None = None
    hidden_size: int = 0


def preprocess(request: EngineCoreRequest, bounds: Bounds, grammars: Workshop | None = None) -> Request:
    """Check and prepare a request. A request without a seed gets a random one here; a grammar begins to be compiled.

    Raises:
        PromptTooLongError: the prompt leaves no room for a token.
        UnsupportedOptionError: it asks for what this engine does not offer.
        InvalidRequestError: a value is wrong.
    """
    for name in _REFUSED_FIELDS:
        if getattr(request, name):
            raise UnsupportedOptionError(f"{name} is not supported by this engine", param=name)
    if request.priority != 0 and not bounds.by_priority:
        raise UnsupportedOptionError(
            "priority is not supported: requests run first come, first served (see scheduling_policy)", param="priority"
        )
    if request.pooling_params is not None:
        return _pooled(request, request.pooling_params, bounds)
    params = request.sampling_params
    if params is None:
        raise InvalidRequestError("sampling_params are missing", param="sampling_params")
    prompt = request.prompt_token_ids or []
    _check_prompt(prompt, bounds)
    for name, neutral in REFUSED.items():
        value = getattr(params, name)
        if value != neutral and (value or isinstance(value, (int, float))) and value is not None:
            raise UnsupportedOptionError(f"{name} is not supported by this engine", param=name)
    num_resumed = _resumed_tokens(params, len(prompt))
    prompt_logprobs = checked_logprobs("prompt_logprobs", params.prompt_logprobs, bounds)
    checked = sampling(params, bounds)
    grammar, compilation = _grammar(request, params, len(prompt) - num_resumed, bounds, grammars)
    return Request(
        request.request_id,
        prompt,
        checked,
        max_length=_max_length(params, len(prompt), num_resumed, bounds),
        num_resumed_tokens=num_resumed,
        min_tokens=params.min_tokens,
        eos_token_id=None if params.ignore_eos else params.eos_token_id,
        stop_token_ids=frozenset(params.stop_token_ids or ()),
        prompt_logprobs=None if prompt_logprobs is None else PromptLogprobs(prompt_logprobs, bounds.vocab_size),
        skip_reading_prefix_cache=prompt_logprobs is not None or bool(params.skip_reading_prefix_cache),
        trace_headers=request.trace_headers,
        priority=request.priority,
        cache_salt=request.cache_salt,
        lora_id=request.lora_request.lora_int_id if request.lora_request else 0,
        # What continues a request has waited before, and has a reader who sees the rest.
        queue_timeout=None if num_resumed else _queue_timeout(params.extra_args, "extra_args"),
        grammar=grammar,
        blocked_on=compilation,
    )


def _grammar(
    request: EngineCoreRequest, params: SamplingParams, output_start: int, bounds: Bounds, grammars: Workshop | None
) -> tuple[GrammarState, Compilation] | tuple[None, None]:
    """What structured output allows, and what is to be waited for; raises what `preprocess` raises."""
    if params.structured_outputs is None:
        return None, None
    if grammars is None:
        raise UnsupportedOptionError(
            "structured_outputs is not supported by this engine, which has no tokenizer", param="structured_outputs"
        )
    compilation = grammars.order(grammar_spec(params.structured_outputs))
    thinks = request.reasoning_ended is False and bounds.thinking is not None
    state = GrammarState(
        compilation.start,
        output_start,
        bounds.vocab_size,
        None if params.ignore_eos else params.eos_token_id,
        bounds.thinking.end if thinks and bounds.thinking is not None else (),
    )
    return state, compilation


def _pooled(request: EngineCoreRequest, params: PoolingParams, bounds: Bounds) -> Request:
    """A request for a vector; raises what `preprocess` raises."""
    pooling = checked_pooling(params, bounds.pooling, bounds.hidden_size)
    prompt = request.prompt_token_ids or []
    if len(prompt) > bounds.max_pooled_len:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens; it may have {bounds.max_pooled_len}", param="prompt_token_ids"
        )
    _check_ids(prompt, bounds)
    return Request(
        request.request_id,
        prompt,
        Sampling(temperature=0.0),
        max_length=len(prompt) + 1,  # as if a token followed, which never does
        pooling=pooling,
        skip_reading_prefix_cache=pooling.needs_all or bool(params.skip_reading_prefix_cache),
        trace_headers=request.trace_headers,
        priority=request.priority,
        cache_salt=request.cache_salt,
        queue_timeout=_queue_timeout(params.extra_kwargs, "extra_kwargs"),
    )


def _check_prompt(prompt: list[int], bounds: Bounds) -> None:
    if len(prompt) >= bounds.max_model_len:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens; prompt and output together may have {bounds.max_model_len}",
            param="prompt_token_ids",
        )
    _check_ids(prompt, bounds)


def _check_ids(prompt: list[int], bounds: Bounds) -> None:
    if not prompt:
        raise InvalidRequestError("the prompt is empty", param="prompt_token_ids")
    if min(prompt) < 0 or max(prompt) >= bounds.vocab_size:
        raise InvalidRequestError(
            f"token ids of the prompt must lie in 0 ... {bounds.vocab_size - 1}; found {min(prompt)} ... {max(prompt)}",
            param="prompt_token_ids",
        )


def _resumed_tokens(params: SamplingParams, prompt_length: int) -> int:
    extra = params.extra_args or {}
    for name, value in extra.items():
        if name not in (RESUMED_TOKENS, QUEUE_TIMEOUT) and value is not None:
            raise UnsupportedOptionError(f"extra_args[{name!r}] is not supported by this engine", param="extra_args")
    count = extra.get(RESUMED_TOKENS) or 0
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < prompt_length:
        raise InvalidRequestError(
            f"extra_args[{RESUMED_TOKENS!r}] is {count!r}; it must lie in 0 ... {prompt_length - 1}, "
            "one less than the prompt has tokens",
            param="extra_args",
        )
    return count


def _queue_timeout(extra: dict[str, Any] | None, param: str) -> float | None:
    timeout = (extra or {}).get(QUEUE_TIMEOUT)
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise InvalidRequestError(
            f"{param}[{QUEUE_TIMEOUT!r}] is {timeout!r}; it must be seconds, not negative", param=param
        )
    return float(timeout)


def _max_length(params: SamplingParams, prompt_length: int, num_resumed: int, bounds: Bounds) -> int:
    """At how many tokens, prompt included, the request ends with LENGTH."""
    if params.max_tokens is None:
        demand(params.min_tokens >= 0, "min_tokens", params.min_tokens, "not negative")
        return bounds.max_model_len
    demand(params.max_tokens >= 1, "max_tokens", params.max_tokens, "at least 1")
    demand(0 <= params.min_tokens <= params.max_tokens, "min_tokens", params.min_tokens, "in 0 ... max_tokens")
    demand(num_resumed < params.max_tokens, "max_tokens", params.max_tokens, f"above the {num_resumed} resumed tokens")
    return min(bounds.max_model_len, prompt_length - num_resumed + params.max_tokens)
