"""preprocess.py: each option is honoured, left to others or refused by name; wrong values name their field."""

from __future__ import annotations

import math

import msgspec
import pytest

from muro.core.preprocess import HONOURED, LEFT_TO_OTHERS, REFUSED, Bounds, preprocess
from muro.core.request import Request
from muro.errors import InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from muro.wire.arrays import Tensor
from muro.wire.request import (
    QUEUE_TIMEOUT,
    RESUMED_TOKENS,
    EngineCoreRequest,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    PoolingParams,
    SamplingParams,
    StructuredOutputsParams,
)

BOUNDS = Bounds(max_model_len=32, vocab_size=100, max_logprobs=5)


def prepare(prompt: list[int] | None = None, request: dict[str, object] | None = None, **options: object) -> Request:
    parts = {"sampling_params": SamplingParams(**options), **(request or {})}  # type: ignore[arg-type]
    return preprocess(EngineCoreRequest("r", [1, 2, 3] if prompt is None else prompt, **parts), BOUNDS)  # type: ignore[arg-type]


def test_every_option_of_the_wire_is_in_exactly_one_class() -> None:
    classes = [HONOURED, LEFT_TO_OTHERS, frozenset(REFUSED)]
    assert sum(map(len, classes)) == len(frozenset().union(*classes))
    assert frozenset().union(*classes) == set(SamplingParams.__struct_fields__)


ASKING = {
    "n": 2,
    "structured_outputs": StructuredOutputsParams(regex="a"),
    "routed_experts_prompt_start": 1,
    "trace_decode_token_ids": [1],
    "prompt_logprob_token_ids": Tensor("int64", [1], bytes(8)),
    "prompt_logprob_start": 3,
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_is_not_offered_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=name) as caught:
        prepare(**{name: ASKING[name]})
    assert caught.value.param == name
    prepare(**{name: REFUSED[name]})


@pytest.mark.parametrize(
    "option",
    [
        {"bad_words": []},
        {"bad_words_token_ids": []},
        {"logit_bias": {}},
        {"extra_args": {}},
        {"extra_args": {"kv_transfer_params": None}},
        {"stop_token_ids": None},
        {"watermarking": True},
    ],
)
def test_what_front_ends_write_without_asking_for_anything_passes(option: dict[str, object]) -> None:
    prepare(**option)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pooling_params", PoolingParams()),
        ("lora_request", LoRARequest("a", 1, "/a")),
        ("mm_features", [MultiModalFeature(None, "image", "x", PlaceholderRange(0, 1))]),
        ("prompt_embeds", Tensor("float32", [1, 1], bytes(4))),
        ("resumable", True),
        ("abort_immediately", True),
        ("priority", -1),
    ],
)
def test_a_request_field_that_is_not_offered_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UnsupportedOptionError, match=name) as caught:
        prepare(request={name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("logprobs", 6),
        ("prompt_logprobs", -2),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 6),
        ("thinking_token_budget", 3),
        ("max_tokens", 0),
        ("max_tokens", -(2**63)),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("extra_args", {RESUMED_TOKENS: 3}),
        ("extra_args", {RESUMED_TOKENS: -1}),
        ("extra_args", {RESUMED_TOKENS: "1"}),
        ("extra_args", {RESUMED_TOKENS: True}),
        ("extra_args", {"kv_transfer_params": {}}),
    ],
)
def test_a_wrong_value_names_its_field(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        prepare(**{name: value})
    assert caught.value.param == name


def test_min_tokens_is_checked_without_max_tokens_too() -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        prepare(max_tokens=None, min_tokens=-1)


@pytest.mark.parametrize("prompt", [[], [100], [-1], [0, 2**31 - 1]])
def test_a_prompt_outside_the_vocabulary_is_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prepare(prompt)
    assert caught.value.param == "prompt_token_ids"


def test_a_prompt_must_leave_room_for_a_token() -> None:
    assert prepare([1] * 31, max_tokens=None).max_length == 32
    with pytest.raises(PromptTooLongError, match="32 tokens"):
        prepare([1] * 32)


def test_sampling_params_are_needed() -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        preprocess(EngineCoreRequest("r", [1]), BOUNDS)


def test_limits_become_lengths() -> None:
    one = prepare(max_tokens=5, min_tokens=2, eos_token_id=9, stop_token_ids=[8])
    assert (one.max_length, one.min_length, one.eos_token_id, one.end_token_ids) == (8, 5, 9, {8, 9})
    assert prepare(max_tokens=2**63 - 1).max_length == 32
    assert prepare(ignore_eos=True, eos_token_id=9).eos_token_id is None


def test_resumed_tokens_use_up_the_limits() -> None:
    one = prepare([1, 2, 3, 4], max_tokens=3, min_tokens=2, extra_args={RESUMED_TOKENS: 2})
    assert (one.max_length, one.min_length, one.num_output_tokens) == (5, 4, 2)
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        prepare([1, 2, 3, 4], max_tokens=2, extra_args={RESUMED_TOKENS: 2})


def test_how_long_it_may_wait() -> None:
    assert prepare().queue_timeout is None
    assert prepare(extra_args={QUEUE_TIMEOUT: 2}).queue_timeout == 2.0
    assert prepare(extra_args={QUEUE_TIMEOUT: 2.5, RESUMED_TOKENS: 1}).queue_timeout is None, "it ran before"
    for wrong in (-1, "2", True, math.nan, math.inf):
        with pytest.raises(InvalidRequestError, match=QUEUE_TIMEOUT):
            prepare(extra_args={QUEUE_TIMEOUT: wrong})


def test_sampling_options_are_read() -> None:
    one = prepare(seed=7, logprobs=2, presence_penalty=0.5)
    assert (one.sampling.seed, one.sampling.logprobs) == (7, 2)
    assert one.sampling.history is not None and one.sampling.history.presence_penalty == 0.5


def test_log_probabilities_of_the_prompt_need_all_of_it_computed() -> None:
    assert (prepare().prompt_logprobs, prepare().skip_reading_prefix_cache) == (None, False)
    assert prepare(skip_reading_prefix_cache=True).skip_reading_prefix_cache
    one = prepare(prompt_logprobs=0, skip_reading_prefix_cache=False)
    assert one.prompt_logprobs is not None and one.skip_reading_prefix_cache
    bounds = msgspec.structs.replace(BOUNDS, max_logprobs=-1)
    request = EngineCoreRequest("r", [1], sampling_params=SamplingParams(prompt_logprobs=-1, logprobs=-1))
    assert preprocess(request, bounds).prompt_logprobs is not None


def test_the_prompt_is_copied() -> None:
    prompt = [1, 2]
    prepare(prompt).append(3)
    assert prompt == [1, 2]
