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
    }
    params = msgspec.to_builtins(sampling_params(decode(kind, **options), 9, SamplingParams()))
    assert {name: params[name] for name in options} == options
    assert params["max_tokens"] == 9
    assert sampling_params(decode(kind, stop="one"), None, SamplingParams()).stop == ["one"]


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
    assert decode(kind, **dict.fromkeys(IGNORED, "x")) == decode(kind)
    for name, values in NEUTRAL.items():
        for value in values:
            assert decode(kind, **{name: value}) == decode(kind)


@both
@pytest.mark.parametrize("name", [*NEUTRAL, "no_such_option", "x" * 5000])
def test_unsupported_option_is_refused_by_name(kind: type[GenerationOptions], name: str) -> None:
    with pytest.raises(UnsupportedOptionError) as caught:
        decode(kind, **{name: 0.5})
    assert caught.value.param == name[:100]
    assert name[:100] in caught.value.message


def test_false_and_zero_are_told_apart() -> None:
    with pytest.raises(UnsupportedOptionError):
        decode(CompletionRequest, logprobs=0)
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
