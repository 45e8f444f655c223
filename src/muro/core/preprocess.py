"""From an `EngineCoreRequest` to a `Request` that the scheduler can take without looking twice.

Every sampling option is honoured, or is none of the engine's business, or is refused by name: none is dropped
silently. The same holds for the request's own fields, save hints (`session_id`, `kv_hints`), `cache_salt`, which
concerns prefix caches alone, and `reasoning_...`, which goes with structured output.

Runs on the receiver thread, so it depends on nothing but the request and the fixed `Bounds`.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from muro.core.request import Request
from muro.core.sampling import Sampling
from muro.errors import InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from muro.wire.request import QUEUE_TIMEOUT, RESUMED_TOKENS, EngineCoreRequest, RepetitionDetection, SamplingParams

HONOURED = frozenset(
    {
        "temperature", "top_k", "top_p", "min_p", "seed", "allowed_token_ids", "logprobs",
        "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "eos_token_id", "all_stop_token_ids", "extra_args",
    }
)  # fmt: skip

LEFT_TO_OTHERS = frozenset(
    {
        # The front-end's: text, and how deltas are put together.
        "stop", "flat_logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens",
        "include_stop_str_in_output", "output_kind", "skip_clone", "output_text_buffer_length", "stream_interval",
        # Permissions and notes that ask nothing of an engine without prefix cache and watermarks.
        "skip_reading_prefix_cache", "watermarking", "watermarking_skipped",
    }
)  # fmt: skip

REFUSED: dict[str, Any] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "prompt_logprobs": None,
    "logprob_token_ids": None,
    "structured_outputs": None,
    "logit_bias": None,
    "routed_experts_prompt_start": 0,
    "bad_words": None,
    "bad_words_token_ids": None,
    "thinking_token_budget": None,
    "repetition_detection": RepetitionDetection(),
    "trace_decode_token_ids": None,
    "prompt_logprob_token_ids": None,
    "prompt_logprob_start": 0,
}
"""Options that are not offered, each with the value that asks for nothing; None and empty containers never do."""

_REFUSED_FIELDS = ("pooling_params", "lora_request", "mm_features", "prompt_embeds", "resumable", "abort_immediately")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must fit into. `max_model_len` counts prompt and output, and never exceeds the cache."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int


def preprocess(request: EngineCoreRequest, bounds: Bounds) -> Request:
    """Check and prepare a request. A request without a seed gets a random one here.

    Raises:
        PromptTooLongError: the prompt leaves no room for a token.
        UnsupportedOptionError: it asks for what this engine does not offer.
        InvalidRequestError: a value is wrong.
    """
    for name in _REFUSED_FIELDS:
        if getattr(request, name):
            raise UnsupportedOptionError(f"{name} is not supported by this engine", param=name)
    if request.priority != 0:
        raise UnsupportedOptionError(
            "priority is not supported: requests run first come, first served", param="priority"
        )
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
    return Request(
        request.request_id,
        prompt,
        _sampling(params, bounds),
        max_length=_max_length(params, len(prompt), num_resumed, bounds),
        num_resumed_tokens=num_resumed,
        min_tokens=params.min_tokens,
        eos_token_id=None if params.ignore_eos else params.eos_token_id,
        stop_token_ids=frozenset(params.stop_token_ids or ()),
        banned=_banned(params, bounds),
        trace_headers=request.trace_headers,
        # What continues a request has waited before, and has a reader who sees the rest.
        queue_timeout=None if num_resumed else _queue_timeout(params),
    )


def _check_prompt(prompt: list[int], bounds: Bounds) -> None:
    if not prompt:
        raise InvalidRequestError("the prompt is empty", param="prompt_token_ids")
    if len(prompt) >= bounds.max_model_len:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens; prompt and output together may have {bounds.max_model_len}",
            param="prompt_token_ids",
        )
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


def _queue_timeout(params: SamplingParams) -> float | None:
    timeout = (params.extra_args or {}).get(QUEUE_TIMEOUT)
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise InvalidRequestError(
            f"extra_args[{QUEUE_TIMEOUT!r}] is {timeout!r}; it must be seconds, not negative", param="extra_args"
        )
    return float(timeout)


def _max_length(params: SamplingParams, prompt_length: int, num_resumed: int, bounds: Bounds) -> int:
    """At how many tokens, prompt included, the request ends with LENGTH."""
    if params.max_tokens is None:
        _demand(params.min_tokens >= 0, "min_tokens", params.min_tokens, "not negative")
        return bounds.max_model_len
    _demand(params.max_tokens >= 1, "max_tokens", params.max_tokens, "at least 1")
    _demand(0 <= params.min_tokens <= params.max_tokens, "min_tokens", params.min_tokens, "in 0 ... max_tokens")
    _demand(num_resumed < params.max_tokens, "max_tokens", params.max_tokens, f"above the {num_resumed} resumed tokens")
    return min(bounds.max_model_len, prompt_length - num_resumed + params.max_tokens)


def _sampling(params: SamplingParams, bounds: Bounds) -> Sampling:
    _demand(0.0 <= params.temperature < math.inf, "temperature", params.temperature, "a number that is not negative")
    _demand(0.0 < params.top_p <= 1.0, "top_p", params.top_p, "above 0 and at most 1")
    _demand(params.top_k >= -1, "top_k", params.top_k, "positive, or 0 or -1 to switch it off")
    _demand(0.0 <= params.min_p <= 1.0, "min_p", params.min_p, "in 0 ... 1")
    if (logprobs := params.logprobs) is not None:
        most = bounds.vocab_size if bounds.max_logprobs == -1 else bounds.max_logprobs
        asked = bounds.vocab_size if logprobs == -1 else logprobs
        _demand(0 <= asked <= most, "logprobs", logprobs, f"in 0 ... {most}, the engine's max_logprobs")
    return Sampling(
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        seed=secrets.randbits(64) if params.seed is None else params.seed,
        allowed=_allowed(params, bounds),
        logprobs=logprobs,
    )


def _allowed(params: SamplingParams, bounds: Bounds) -> NDArray[np.intp] | None:
    ids = params.allowed_token_ids
    if ids is None:
        return None
    if not ids or min(ids) < 0 or max(ids) >= bounds.vocab_size:
        raise InvalidRequestError(
            f"allowed_token_ids must be some of 0 ... {bounds.vocab_size - 1}", param="allowed_token_ids"
        )
    if params.min_tokens > 0 and not set(ids) - _stop_ids(params):
        raise InvalidRequestError("allowed_token_ids holds nothing but stop tokens", param="allowed_token_ids")
    return _array(set(ids))


def _banned(params: SamplingParams, bounds: Bounds) -> NDArray[np.intp] | None:
    """The ids that must not come while fewer than `min_tokens` exist."""
    if params.min_tokens <= 0:
        return None
    return _array({i for i in _stop_ids(params) if 0 <= i < bounds.vocab_size})


def _stop_ids(params: SamplingParams) -> set[int]:
    ids = {*params.all_stop_token_ids, *(params.stop_token_ids or ())}
    if params.eos_token_id is not None and not params.ignore_eos:
        ids.add(params.eos_token_id)
    return ids


def _array(ids: set[int]) -> NDArray[np.intp]:
    return np.array(sorted(ids), np.intp)


def _demand(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name} is {value}; it must be {rule}", param=name)
