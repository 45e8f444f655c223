"""What both generation routes share: the options, which others are refused, and body -> struct.

The rules of `decode_request`, in order: the body is one JSON object; null means that an option is not given; options
that change nothing here are dropped; an option that is not served is refused by name unless its value asks for
nothing; the rest is checked for type and range. Names and meanings are OpenAI's, then those of vLLM's server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.server.deadlines import Timeouts
from muro.server.schemas.structured import ResponseFormat, StructuredOutputs, constraint
from muro.wire.request import Int64, RepetitionDetection, SamplingParams, StructuredOutputsParams, TokenId

MAX_CHOICES = 1024
"""Prompts of one request times `n`."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
TopCount = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
"""How many of the most probable tokens; -1: all."""

IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""Options that concern the caller's accounts or a hosted service: accepted, without effect."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
"""Options that a route may not serve, with the values that ask for nothing and therefore pass."""


class StreamOptions(msgspec.Struct):
    """`stream_options`: whether a last chunk, or with vLLM's addition every chunk, carries the usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Structure(msgspec.Struct, frozen=True):
    """A constraint on the output, and the option that asks for it: by its name it is refused."""

    option: str
    params: StructuredOutputsParams


class GenerationOptions(msgspec.Struct, kw_only=True):
    """The options that both routes take; each route's request adds its own fields. `timeouts` is our addition; what
    OpenAI's API does not have is vLLM's, as `vllm_xargs`: options that only the engine knows."""

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    max_tokens: Positive | None = None
    min_tokens: Count = 0
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    logit_bias: dict[TokenId, float] = {}
    allowed_token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)] | None = None
    bad_words: Annotated[list[StopString], msgspec.Meta(max_length=1024)] = []
    seed: Int64 | None = None
    stop: StopString | Annotated[list[StopString], msgspec.Meta(max_length=64)] = []
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=1024)] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: Count | None = None
    prompt_logprobs: TopCount | None = None
    return_tokens_as_token_ids: bool = False
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 = 0
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    timeouts: Timeouts | None = None
    vllm_xargs: dict[str, str | Int64 | float | bool] | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream to be true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequestError("prompt_logprobs are not given in streams", param="prompt_logprobs")

    def wanted_logprobs(self) -> tuple[int | None, int | None]:
        """How many of the most probable tokens to tell in each place of the output, and of the prompt (-1: all)."""
        return None, self.prompt_logprobs

    def structure(self) -> Structure | None:
        """What the output is held to, and by which option. Raises InvalidRequestError if two options ask for it."""
        found = constraint(self.response_format, self.structured_outputs)
        return None if found is None else Structure(*found)


R = TypeVar("R", bound=msgspec.Struct)
N = TypeVar("N", int, float)


def _check_repetition(asked: RepetitionDetection | None) -> None:
    """Raises InvalidRequestError for what an engine could not do, and one of vLLM's ends with."""
    if asked is None or asked.max_pattern_size == 0:
        return
    if not (0 <= asked.min_pattern_size <= asked.max_pattern_size and asked.min_count >= 2):
        raise InvalidRequestError(
            "repetition_detection: min_pattern_size must lie in 0 ... max_pattern_size, and min_count be 2 at least",
            param="repetition_detection",
        )


def sampling_params(options: GenerationOptions, max_tokens: int | None, defaults: SamplingParams) -> SamplingParams:
    """The options in the wire's terms; ids that come from the tokenizer (end of sequence) are still missing.

    How to sample comes from `defaults` where the options do not say it.

    Raises:
        InvalidRequestError: more tokens are asked for at least than at most, or `vllm_xargs` names a key of ours.
    """
    if max_tokens is not None and options.min_tokens > max_tokens:
        what = f"min_tokens is {options.min_tokens}, but at most {max_tokens} tokens are asked for"
        raise InvalidRequestError(what, param="min_tokens")
    _check_repetition(options.repetition_detection)
    logprobs, prompt_logprobs = options.wanted_logprobs()
    structure = options.structure()
    return SamplingParams(
        n=options.n,
        temperature=_first(options.temperature, defaults.temperature),
        top_p=_first(options.top_p, defaults.top_p),
        top_k=_first(options.top_k, defaults.top_k),
        min_p=_first(options.min_p, defaults.min_p),
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repetition_penalty,
        logit_bias=options.logit_bias or None,
        allowed_token_ids=options.allowed_token_ids,
        bad_words=options.bad_words,
        seed=options.seed,
        stop=[options.stop] if isinstance(options.stop, str) else list(options.stop),
        stop_token_ids=list(options.stop_token_ids),
        ignore_eos=options.ignore_eos,
        max_tokens=max_tokens,
        min_tokens=options.min_tokens,
        include_stop_str_in_output=options.include_stop_str_in_output,
        skip_special_tokens=options.skip_special_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        repetition_detection=options.repetition_detection,
        thinking_token_budget=options.thinking_token_budget,
        structured_outputs=None if structure is None else structure.params,
        extra_args=_extra_args(options),
    )


def _extra_args(options: GenerationOptions) -> dict[str, Any] | None:
    """What only the engine knows: vLLM's `vllm_xargs`. Keys of our own are not for callers: the server sets them."""
    for name in options.vllm_xargs or ():
        if name.startswith("muro_"):
            raise InvalidRequestError(f"vllm_xargs cannot set {name!r}", param="vllm_xargs")
    return dict(options.vllm_xargs) if options.vllm_xargs else None


def _first(given: N | None, default: N) -> N:
    return default if given is None else given


def decode_request(body: bytes, kind: type[R]) -> R:
    """The request in a body.

    Raises:
        InvalidRequestError: no JSON object, or an option of a wrong type or out of range; `param` names it.
        UnsupportedOptionError: an option that is not served; `param` names it.
    """
    if not body:
        raise InvalidRequestError("the body is empty; it must be a JSON object")
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise InvalidRequestError(f"the body is not valid JSON: {err}") from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    if not isinstance(raw, dict):
        raise InvalidRequestError("the body must be a JSON object")
    try:
        # Keys of JSON objects are texts, also where they stand for token ids.
        return msgspec.convert(_served(raw, frozenset(kind.__struct_fields__)), kind, str_keys=True)
    except msgspec.ValidationError as err:
        # An error of ours in `__post_init__` passes through msgspec only if it is no ValueError or TypeError.
        raise _invalid(str(err)) from None


def _served(raw: dict[str, Any], fields: frozenset[str]) -> dict[str, Any]:
    """The options that are served; raises on the first that asks for anything else."""
    served = {}
    for name, value in raw.items():
        if value is None or (name in IGNORED and name not in fields):
            continue
        if name in fields:
            served[name] = value
        elif not _asks_nothing(name, value):
            raise UnsupportedOptionError(f"the option {name[:100]!r} is not supported", param=name[:100])
    return served


def _asks_nothing(name: str, value: Any) -> bool:
    # False equals 0 in Python, but it is not the same thing to ask for.
    return any(value == v and (value is v or not isinstance(v, bool)) for v in NEUTRAL.get(name, ()))


def _invalid(message: str) -> InvalidRequestError:
    """msgspec says "Expected `int`, got `str` - at `$.max_tokens`"; the path becomes `param`."""
    found = re.fullmatch(r"(.*?) - at (?:`key` in )?`\$\.?(.*)`", message, re.DOTALL)
    if found is None:
        missing = re.fullmatch(r"Object missing required field `(.*)`", message)
        return InvalidRequestError(message, param=missing[1] if missing else None)
    return InvalidRequestError(f"{found[2]}: {found[1]}", param=found[2])
