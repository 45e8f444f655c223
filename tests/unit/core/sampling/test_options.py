"""options.py: what values may be, and what becomes of them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from muro.core.preprocess import Bounds
from muro.core.sampling import Sampling
from muro.core.sampling.options import MAX_BAD_WORDS, MAX_LOGPROB_TOKEN_IDS, MAX_PATTERN_SIZE, sampling
from muro.core.sampling.settings import History, Repetition, ThinkingBudget, ThinkingMarkers
from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.wire.request import RepetitionDetection, SamplingParams

BOUNDS = Bounds(max_model_len=32, vocab_size=100, max_logprobs=5)
MARKERS = ThinkingMarkers((1,), (2,))


def read(bounds: Bounds = BOUNDS, **options: object) -> Sampling:
    return sampling(SamplingParams(**options), bounds)  # type: ignore[arg-type]


def history(**options: object) -> History:
    found = read(msgspec.structs.replace(BOUNDS, thinking=MARKERS), **options).history
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 1e7),
        ("repetition_penalty", 1e-7),
        ("repetition_penalty", math.nan),
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logprobs", -2),
        ("logprobs", -1),
        ("logprobs", 6),
        ("logprob_token_ids", [100]),
        ("logprob_token_ids", [1] * (MAX_LOGPROB_TOKEN_IDS + 1)),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [100]),
        ("allowed_token_ids", [-1]),
        ("bad_words_token_ids", [[]]),
        ("bad_words_token_ids", [[1, 100]]),
        ("bad_words_token_ids", [[1]] * (MAX_BAD_WORDS + 1)),
        ("thinking_token_budget", -1),
        ("repetition_detection", RepetitionDetection(3, 4, 2)),
        ("repetition_detection", RepetitionDetection(3, -1, 2)),
        ("repetition_detection", RepetitionDetection(-1, 0, 2)),
        ("repetition_detection", RepetitionDetection(3, 1, 1)),
        ("repetition_detection", RepetitionDetection(MAX_PATTERN_SIZE + 1, 1, 2)),
    ],
)
def test_a_wrong_value_names_its_option(name: str, value: object) -> None:
    bounds = msgspec.structs.replace(BOUNDS, thinking=MARKERS)
    with pytest.raises(InvalidRequestError, match=name) as caught:
        read(bounds, **{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"bad_words": []},
        {"bad_words_token_ids": []},
        {"logit_bias": {}},
        {"logprob_token_ids": []},
        {"stop_token_ids": [4]},
        {"repetition_detection": RepetitionDetection()},
        {"min_tokens": 3},
    ],
)
def test_who_asks_for_nothing_has_no_state(option: dict[str, object]) -> None:
    found = read(seed=1, **option)
    assert found == Sampling(seed=1)


def test_a_token_that_the_model_has_not_is_told() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"logit_bias has token ids that must lie in 0 \.\.\. 99; found 3 \.\.\. 100"
    ):
        read(logit_bias={3: 1.0, 100: 1.0})


def test_options_that_leave_no_token_from_the_start_are_refused() -> None:
    words = [[3], [4, 5]]
    with pytest.raises(InvalidRequestError, match="allowed_token_ids holds nothing but bad words"):
        read(allowed_token_ids=[3], bad_words_token_ids=words)
    with pytest.raises(InvalidRequestError, match="holds nothing but stop tokens and bad words"):
        read(allowed_token_ids=[3, 4], bad_words_token_ids=words, stop_token_ids=[4], min_tokens=1)
    found = read(allowed_token_ids=[3, 5], bad_words_token_ids=words)
    assert found.allowed is not None and found.allowed.tolist() == [3, 5]


def test_words_without_their_token_ids_are_refused() -> None:
    with pytest.raises(UnsupportedOptionError, match="bad_words") as caught:
        read(bad_words=["x"])
    assert caught.value.param == "bad_words"


def test_a_thinking_budget_needs_markers() -> None:
    with pytest.raises(UnsupportedOptionError, match="thinking_token_budget") as caught:
        read(thinking_token_budget=5)
    assert caught.value.param == "thinking_token_budget"
    assert history(thinking_token_budget=0).thinking == ThinkingBudget(0, MARKERS)


def test_what_becomes_of_the_options() -> None:
    assert history(presence_penalty=0.5) == History(presence_penalty=0.5)
    assert history(frequency_penalty=-0.5) == History(frequency_penalty=-0.5)
    assert history(repetition_penalty=1.5) == History(repetition_penalty=1.5)
    assert history(repetition_detection=RepetitionDetection(4, 0, 3)).repetition == Repetition(1, 4, 3)
    words = history(bad_words_token_ids=[[5], [3], [1, 2], [4, 1, 7]])
    assert words.bad_tokens is not None and words.bad_tokens.tolist() == [3, 5]
    assert words.bad_words == {1: [([1], 2), ([4, 1], 7)]}
    bias = read(logit_bias={3: 500.0, 4: -math.inf, 5: 0.5}).bias
    assert bias is not None
    assert dict(zip(bias.ids.tolist(), bias.values.tolist(), strict=True)) == {3: 100.0, 4: -100.0, 5: 0.5}


def test_stop_ids_are_banned_up_to_min_tokens() -> None:
    options = {"eos_token_id": 9, "stop_token_ids": [8], "all_stop_token_ids": [7, 200], "max_tokens": 50}
    found = history(min_tokens=2, **options)
    assert found.min_tokens == 2 and found.stop_ids is not None and found.stop_ids.tolist() == [7, 8, 9]
    ignoring = history(min_tokens=2, ignore_eos=True, **options).stop_ids
    assert ignoring is not None and ignoring.tolist() == [7, 8]


def test_allowed_ids_that_min_tokens_would_all_ban_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="allowed_token_ids"):
        read(allowed_token_ids=[5, 6], min_tokens=1, all_stop_token_ids=[5], stop_token_ids=[6])
    found = read(allowed_token_ids=[7, 6, 5, 6], min_tokens=1, all_stop_token_ids=[5], stop_token_ids=[6])
    assert found.allowed is not None and found.allowed.tolist() == [5, 6, 7]


def test_a_seed_is_kept_and_a_missing_one_is_drawn() -> None:
    assert read(seed=-(2**63)).seed == -(2**63)
    assert read().seed != read().seed


def test_log_probabilities() -> None:
    assert (read().logprobs, read().logprob_token_ids) == (None, None)
    assert (read(logprobs=0).logprobs, read(logprobs=5).logprobs) == (0, 5)
    assert read(msgspec.structs.replace(BOUNDS, max_logprobs=-1), logprobs=-1).logprobs == -1
    found = read(logprob_token_ids=[9, 3, 9])
    assert found.logprobs == 0 and np.array_equal(found.logprob_token_ids, [9, 3, 9])  # type: ignore[arg-type]
    assert read(logprob_token_ids=[9], logprobs=2).logprobs == 2
