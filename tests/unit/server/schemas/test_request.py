"""request.py: what is served is decoded, what is not is refused by name, and no body can raise anything else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.server.schemas.chat import ChatCompletionRequest
from muro.server.schemas.completions import CompletionRequest
from muro.server.schemas.request import IGNORED, NEUTRAL, GenerationOptions, decode_request, sampling_params
from muro.wire.request import SamplingParams

REQUIRED: dict[type[GenerationOptions], dict[str, Any]] = {
    CompletionRequest: {"prompt": "p"},
    ChatCompletionRequest: {"messages": [{"role": "user", "content": "p"}]},
}
both = pytest.mark.parametrize("kind", REQUIRED)


def decode(kind: type[GenerationOptions], **options: Any) -> Any:
    return decode_request(msgspec.json.encode(REQUIRED[kind] | options), kind)


@both
def test_an_empty_body_is_told_as_such(kind: type[GenerationOptions]) -> None:
    with pytest.raises(InvalidRequestError, match="the body is empty"):
        decode_request(b"", kind)


@both
def test_all_options_of_the_sampler_arrive(kind: type[GenerationOptions]) -> None:
    options: dict[str, Any] = {
        "n": 3,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "seed": -(2**63),
        "stop": ["a", "b"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "min_tokens": 2,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "min_p": 0.25,
        "presence_penalty": 1.0,
        "frequency_penalty": -2,
        "repetition_penalty": 1.25,
        "logit_bias": {"7": 1.5, "8": -100},
        "allowed_token_ids": [7, 8],
        "bad_words": ["x"],
        "prompt_logprobs": -1,
        "repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3},
        "thinking_token_budget": 9,
    }
    params = msgspec.to_builtins(sampling_params(decode(kind, **options), 9, SamplingParams()), str_keys=True)
    assert {name: params[name] for name in options} == options
    assert params["max_tokens"] == 9
    assert sampling_params(decode(kind, stop="one"), None, SamplingParams()).stop == ["one"]
    assert sampling_params(decode(kind), 9, SamplingParams()) == SamplingParams(max_tokens=9, stop=[])


def test_how_many_log_probabilities_are_wanted() -> None:
    def wanted(kind: type[GenerationOptions], **options: Any) -> tuple[int | None, int | None]:
        return decode(kind, **options).wanted_logprobs()  # type: ignore[no-any-return]

    assert wanted(CompletionRequest) == wanted(CompletionRequest, logprobs=False) == (None, None)
    assert wanted(CompletionRequest, logprobs=0) == (0, None)
    assert wanted(CompletionRequest, logprobs=2, echo=True) == (2, 2)
    assert wanted(CompletionRequest, logprobs=2, echo=True, prompt_logprobs=5) == (2, 5)
    assert wanted(CompletionRequest, logprobs=2, echo=True, prompt_logprobs=-1) == (2, -1)
    assert wanted(CompletionRequest, echo=True) == (None, None)
    assert wanted(ChatCompletionRequest, logprobs=True) == (0, None)
    assert wanted(ChatCompletionRequest, logprobs=True, top_logprobs=3, prompt_logprobs=1) == (3, 1)
    assert wanted(ChatCompletionRequest, logprobs=False) == (None, None)


@both
def test_what_only_the_engine_knows_is_handed_on(kind: type[GenerationOptions]) -> None:
    given: dict[str, Any] = {"fault": "step:raise", "level": 2, "part": 0.5, "on": True}
    assert sampling_params(decode(kind, vllm_xargs=given), None, SamplingParams()).extra_args == given
    assert sampling_params(decode(kind, vllm_xargs={}), None, SamplingParams()).extra_args is None
    with pytest.raises(InvalidRequestError, match="muro_resumed_tokens") as caught:
        sampling_params(decode(kind, vllm_xargs={"muro_resumed_tokens": 1}), None, SamplingParams())
    assert caught.value.param == "vllm_xargs"


@both
def test_null_means_not_given(kind: type[GenerationOptions]) -> None:
    names = [name for name in kind.__struct_fields__ if name not in REQUIRED[kind]]
    assert decode(kind, **dict.fromkeys(names)) == decode(kind)


@both
def test_options_without_effect_pass(kind: type[GenerationOptions]) -> None:
    assert decode(kind, **dict.fromkeys(IGNORED - {*kind.__struct_fields__}, "x")) == decode(kind)
    for name, values in NEUTRAL.items():
        for value in values:
            if name not in kind.__struct_fields__:
                assert decode(kind, **{name: value}) == decode(kind)


NOT_SERVED = [
    (k, n) for k in REQUIRED for n in (*NEUTRAL, "no_such_option", "x" * 5000) if n not in k.__struct_fields__
]


@pytest.mark.parametrize(("kind", "name"), NOT_SERVED)
def test_unsupported_option_is_refused_by_name(kind: type[GenerationOptions], name: str) -> None:
    with pytest.raises(UnsupportedOptionError) as caught:
        decode(kind, **{name: 0.5})
    assert caught.value.param == name[:100]
    assert name[:100] in caught.value.message


def test_false_and_zero_are_told_apart() -> None:
    with pytest.raises(UnsupportedOptionError):
        decode(CompletionRequest, store=0)
    with pytest.raises(UnsupportedOptionError):
        decode(CompletionRequest, best_of=2)


@both
@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("max_tokens", "3", "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("n", 129, "n"),
        ("temperature", -0.1, "temperature"),
        ("temperature", 2.1, "temperature"),
        ("top_p", 0, "top_p"),
        ("top_k", -2, "top_k"),
        ("seed", 2**63, "seed"),
        ("seed", 2**70, "seed"),
        ("stop", "", "stop"),
        ("stop", ["a", ""], "stop[1]"),
        ("stop", ["a"] * 65, "stop"),
        ("stop_token_ids", [2**31], "stop_token_ids[0]"),
        ("stop_token_ids", [True], "stop_token_ids[0]"),
        ("stream", 1, "stream"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("model", 3, "model"),
        ("presence_penalty", 2.5, "presence_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("logit_bias", {"one": 1}, "logit_bias"),
        ("logit_bias", {"-1": 1}, "logit_bias"),
        ("allowed_token_ids", [], "allowed_token_ids"),
        ("cache_salt", "", "cache_salt"),
        ("priority", 1.5, "priority"),
        ("prompt_logprobs", -2, "prompt_logprobs"),
    ],
)
def test_wrong_value_is_refused_by_name(kind: type[GenerationOptions], name: str, value: Any, param: str) -> None:
    # Integers beyond 64 bits are written by hand: the encoder refuses them.
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else msgspec.json.encode(value).decode()
    body = msgspec.json.encode(REQUIRED[kind])[:-1] + f',"{name}":{text}}}'.encode()
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(body, kind)
    assert caught.value.param == param


@both
def test_missing_field_is_named(kind: type[GenerationOptions]) -> None:
    (field,) = REQUIRED[kind]
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(b"{}", kind)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("kind", "options", "param"),
    [
        (CompletionRequest, {"logprobs": True}, "logprobs"),
        (CompletionRequest, {"max_tokens": 0}, "max_tokens"),
        (CompletionRequest, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (ChatCompletionRequest, {"top_logprobs": 1}, "top_logprobs"),
        (ChatCompletionRequest, {"max_tokens": 0}, "max_tokens"),
        (ChatCompletionRequest, {"tool_choice": "required"}, "tool_choice"),
        (ChatCompletionRequest, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (ChatCompletionRequest, {"tool_choice": "any"}, "tool_choice"),
        (ChatCompletionRequest, {"tools": [{}]}, "tools[0]"),
        (ChatCompletionRequest, {"tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
    ],
)
def test_options_that_do_not_go_together(kind: type[GenerationOptions], options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(kind, **options)
    assert caught.value.param == param


@pytest.mark.parametrize("sizes", [(3, 0, 1), (3, 4, 2), (3, -1, 2), (-3, -4, 2)])
def test_a_repetition_that_cannot_be(sizes: tuple[int, int, int]) -> None:
    asked = dict(zip(("max_pattern_size", "min_pattern_size", "min_count"), sizes, strict=True))
    with pytest.raises(InvalidRequestError) as caught:
        sampling_params(decode(CompletionRequest, repetition_detection=asked), 4, SamplingParams())
    assert caught.value.param == "repetition_detection"
    sampling_params(decode(CompletionRequest, repetition_detection={"min_count": 1}), 4, SamplingParams())


def test_at_least_more_than_at_most() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sampling_params(decode(CompletionRequest, min_tokens=5), 4, SamplingParams())
    assert caught.value.param == "min_tokens"


@both
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt":"a\\ud800"}',
        b'{"seed":' + b"9" * 5000 + b"}",
        b'{"temperature":1e999}',
        b'{"temperature":NaN}',
        b'{"":{}}',
    ],
    ids=lambda body: repr(body[:16]),
)
def test_strange_bodies_are_the_callers_fault(kind: type[GenerationOptions], body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_request(body, kind)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*CompletionRequest.__struct_fields__, *ChatCompletionRequest.__struct_fields__, *NEUTRAL])


@both
@given(options=st.dictionaries(names, json_values, max_size=6))
def test_no_value_raises_anything_else(kind: type[GenerationOptions], options: dict[str, Any]) -> None:
    with suppress(InvalidRequestError):
        assert isinstance(decode_request(msgspec.json.encode(options), kind), kind)


def test_how_to_sample_comes_from_the_defaults_where_the_request_is_silent() -> None:
    defaults = SamplingParams(temperature=0.2, top_p=0.9, top_k=40, min_p=0.1)
    params = sampling_params(decode(CompletionRequest, top_p=1.0, temperature=0), None, defaults)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 40, 0.1)
