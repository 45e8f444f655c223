"""state.py: followed token by token, or made anew from all tokens, it says the same as reading everything again."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.preprocess import Bounds
from muro.core.sampling import Draw, SamplerState, Sampling
from muro.core.sampling.options import sampling
from muro.core.sampling.settings import ThinkingMarkers
from muro.core.sampling.state import SeenTokens
from muro.wire.request import RepetitionDetection, SamplingParams
from tests.support.sampling import plain_forced, plain_repeats

VOCAB = 6
tokens = st.integers(0, VOCAB - 1)
markers = st.builds(
    lambda start, end: ThinkingMarkers(tuple(start), tuple(end)),
    st.lists(tokens, min_size=1, max_size=3),
    st.lists(tokens, min_size=1, max_size=3),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.just(0.5),
        "repetition_penalty": st.just(1.2),
        "min_tokens": st.integers(0, 6),
        "stop_token_ids": st.lists(tokens, max_size=2),
        "bad_words_token_ids": st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=6),
        "thinking_token_budget": st.integers(0, 5),
        "repetition_detection": st.builds(RepetitionDetection, st.integers(2, 4), st.integers(0, 2), st.integers(2, 4)),
    },
)


def bounds(thinking: ThinkingMarkers | None = None) -> Bounds:
    return Bounds(max_model_len=100, vocab_size=VOCAB, max_logprobs=5, thinking=thinking)


def state_for(asked: Sampling, start: int) -> SamplerState | None:
    return None if asked.history is None else SamplerState(asked.history, start)


def shown(draw: Draw) -> object:
    banned = sorted({int(i) for ids in draw.banned for i in ids})
    seen = draw.occurrences
    counts = None if seen is None else dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True))
    return draw.position, banned, counts, draw.forced


@given(asked=options, prompt=st.lists(tokens, max_size=8), output=st.lists(tokens, max_size=25), thinking=markers)
@settings(max_examples=300, deadline=None)
def test_a_state_is_a_function_of_the_tokens(
    asked: dict[str, object], prompt: list[int], output: list[int], thinking: ThinkingMarkers
) -> None:
    params = SamplingParams(max_tokens=None, **asked)  # type: ignore[arg-type]
    chosen = sampling(params, bounds(thinking))
    followed = state_for(chosen, len(prompt))
    if followed is None:
        return
    for length in range(len(output) + 1):
        so_far = [*prompt, *output[:length]]
        anew = state_for(chosen, len(prompt))
        assert anew is not None
        draw = followed.draw(chosen, so_far)
        assert shown(draw) == shown(anew.draw(chosen, so_far))
        assert followed.is_repeating == anew.is_repeating
        position, banned, counts, forced = shown(draw)  # type: ignore[misc]
        assert position == length
        if params.thinking_token_budget is not None:
            budget = params.thinking_token_budget
            assert forced == plain_forced(so_far, thinking.start, thinking.end, budget)
        if (rule := params.repetition_detection) is not None:
            repeats = plain_repeats(
                output[:length], max(rule.min_pattern_size, 1), rule.max_pattern_size, rule.min_count
            )
            assert followed.is_repeating == repeats
        if counts is not None:
            expected = Counter(output[:length])
            if params.repetition_penalty != 1.0:
                expected.update(dict.fromkeys(prompt, 0))
            assert counts == dict(expected)
        words = [w for w in params.bad_words_token_ids or () if [*output[:length]][length - len(w) + 1 :] == w[:-1]]
        words = [w for w in words if length >= len(w) - 1]
        stops = set(params.stop_token_ids or ()) if length < params.min_tokens else set()
        assert banned == sorted({w[-1] for w in words} | stops)


def test_a_bad_word_does_not_begin_in_the_prompt() -> None:
    chosen = sampling(SamplingParams(bad_words_token_ids=[[1, 2, 3]]), bounds())
    state = state_for(chosen, 2)
    assert state is not None
    assert [shown(state.draw(chosen, [0, 1, 2][:n]))[1] for n in (2, 3)] == [[], []]  # type: ignore[index]
    state = state_for(chosen, 1)
    assert state is not None
    assert shown(state.draw(chosen, [0, 1, 2]))[1] == [3]  # type: ignore[index]


def test_many_tokens_are_counted() -> None:
    seen = SeenTokens(range(300))
    for token in range(200, 2000):
        seen.add(token)
        seen.add(200)
    found = seen.occurrences()
    counts = dict(zip(found.ids.tolist(), found.counts.tolist(), strict=True))
    assert counts == {token: float(token >= 200) + 1800 * (token == 200) for token in range(2000)}


@pytest.mark.parametrize(
    ("given_", "budget", "expected"),
    [
        ([], 0, None),
        ([1], 0, 3),
        ([1, 5], 2, None),
        ([1, 5, 5], 2, 3),
        ([1, 5, 3], 2, 4),  # half of the marker stands already
        ([1, 5, 5, 3], 2, 4),
        ([1, 5, 5, 3, 4], 2, None),
        ([1, 5, 5, 3, 4, 1, 5, 5], 2, 3),  # the next stretch has a budget of its own
        ([1, 5, 1, 5], 3, 3),  # a start within a stretch is a token like any other
    ],
)
def test_what_a_spent_budget_forces(given_: list[int], budget: int, expected: int | None) -> None:
    chosen = sampling(SamplingParams(thinking_token_budget=budget), bounds(ThinkingMarkers((1,), (3, 4))))
    for start in {0, len(given_)}:  # it makes no difference what of it is prompt
        state = state_for(chosen, start)
        assert state is not None
        assert state.draw(chosen, given_).forced == expected
