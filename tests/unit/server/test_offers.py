"""offers.py: an option that an engine would ignore is refused by its name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muro.clients.interface import EngineStatus
from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.llm.pipeline import Standing
from muro.server.offers import check_ids, check_offered
from muro.wire.handshake import Features
from muro.wire.request import SAMPLING_OPTIONS, RepetitionDetection, SamplingParams
from tests.unit.llm.test_replay import ready

ECHO = Features("1", [])
OURS = Features("1", [SAMPLING_OPTIONS])


def engine(features: Features | None) -> EngineStatus:
    fields = {field.name: None for field in msgspec.structs.fields(EngineStatus) if field.required}
    return EngineStatus(**{**fields, "rank": 0, "ready": ready(features)})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("logprobs", 0), ("prompt_logprobs", 0), ("presence_penalty", 0.1), ("frequency_penalty", -1.0),
        ("repetition_penalty", 1.1), ("logit_bias", {1: 1.0}), ("allowed_token_ids", [1]), ("bad_words", ["x"]),
        ("stop_token_ids", [5]),
        ("repetition_detection", RepetitionDetection(1, 1, 2)), ("thinking_token_budget", 0),
    ],
)  # fmt: skip
def test_what_an_engine_would_ignore(option: str, value: Any) -> None:
    params = SamplingParams(**{option: value})
    with pytest.raises(UnsupportedOptionError) as caught:
        check_offered(params, Standing(), lambda: [engine(OURS), engine(ECHO)])
    assert caught.value.param == option
    check_offered(params, Standing(), lambda: [engine(OURS), engine(None)])


def test_a_priority_counts_as_one() -> None:
    with pytest.raises(UnsupportedOptionError) as caught:
        check_offered(SamplingParams(), Standing(priority=-1), lambda: [engine(ECHO)])
    assert caught.value.param == "priority"


def test_what_asks_for_nothing_and_how_to_sample_pass() -> None:
    plain = SamplingParams(temperature=0.5, top_p=0.5, top_k=3, min_p=0.1, seed=5, logit_bias={}, bad_words=[])
    check_offered(plain, Standing(cache_salt="mine"), lambda: [engine(ECHO)])


@pytest.mark.parametrize(
    ("prompt", "option", "value"),
    [
        ([5, 100], "prompt", None),
        ([5], "logit_bias", {100: 1.0}),
        ([5], "stop_token_ids", [3, 2**31]),
        ([5], "logprobs", 101),
        ([5], "prompt_logprobs", 10**6),
    ],
)
def test_what_would_end_a_foreign_engine(prompt: list[int], option: str, value: Any) -> None:
    params = SamplingParams() if value is None else SamplingParams(**{option: value})
    with pytest.raises(InvalidRequestError) as caught:
        check_ids([[1], prompt], params, 100, lambda: [engine(OURS), engine(None)])
    assert caught.value.param == option
    check_ids([prompt], params, 100, lambda: [engine(OURS)])


def test_what_a_foreign_engine_can_do() -> None:
    params = SamplingParams(logprobs=-1, prompt_logprobs=100, stop_token_ids=[99], logit_bias={0: 1.0})
    check_ids([[0, 99], []], params, 100, lambda: [engine(None)])
