"""edit.py: what is drawn from is what the options say, and the logits stay as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.preprocess import Bounds
from muro.core.sampling import Draw, SamplerState
from muro.core.sampling.edit import edit, is_edited
from muro.core.sampling.options import sampling
from muro.wire.request import SamplingParams
from tests.support.sampling import plain_scores

VOCAB = 70
tokens = st.integers(0, VOCAB - 1)


def mask_of(ids: set[int], size: int = VOCAB) -> np.ndarray:
    words = np.zeros(-(-size // 32), np.uint32)
    for i in ids:
        words[i // 32] |= np.uint32(1 << (i % 32))
    return words


@given(
    seed=st.integers(0, 2**32),
    prompt=st.lists(tokens, min_size=1, max_size=20),
    output=st.lists(tokens, max_size=20),
    presence=st.sampled_from([0.0, 0.7, -1.5]),
    frequency=st.sampled_from([0.0, 0.3, -2.0]),
    repetition=st.sampled_from([1.0, 1.3, 0.5]),
    bias=st.dictionaries(tokens, st.floats(-150, 150), max_size=5),
    words=st.lists(st.lists(tokens, min_size=1, max_size=2), max_size=5),
    min_tokens=st.integers(0, 9),
    stops=st.lists(tokens, max_size=3),
    grammar=st.none() | st.sets(tokens),
)
@settings(max_examples=200, deadline=None)
def test_scores_are_what_the_options_say(
    seed: int,
    prompt: list[int],
    output: list[int],
    presence: float,
    frequency: float,
    repetition: float,
    bias: dict[int, float],
    words: list[list[int]],
    min_tokens: int,
    stops: list[int],
    grammar: set[int] | None,
) -> None:
    params = SamplingParams(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition, logit_bias=bias,
        bad_words_token_ids=words, min_tokens=min_tokens, stop_token_ids=stops, max_tokens=None,
    )  # fmt: skip
    chosen = sampling(params, Bounds(max_model_len=100, vocab_size=VOCAB, max_logprobs=5))
    row = (np.random.default_rng(seed).standard_normal(VOCAB) * 4).astype(np.float32)
    before = row.copy()
    draw = Draw(chosen, len(output))
    if chosen.history is not None:
        draw = SamplerState(chosen.history, len(prompt)).draw(chosen, [*prompt, *output])
    if grammar is not None:
        draw.mask = mask_of(grammar)
    expected = plain_scores(row, params, prompt, output, grammar)
    if not is_edited(draw):
        assert expected == pytest.approx(dict(enumerate(row.tolist())))
        return
    scores = edit(row, draw, np.empty_like(row))
    assert (row == before).all()
    assert set(np.flatnonzero(scores > -np.inf).tolist()) == set(expected)
    assert {i: float(scores[i]) for i in expected} == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("size", [31, 32, 33, 258])
def test_a_mask_has_a_bit_for_each_id(size: int) -> None:
    row = np.zeros(size, np.float32)
    allowed = {0, size // 2, size - 1}
    chosen = sampling(SamplingParams(), Bounds(max_model_len=9, vocab_size=size, max_logprobs=5))
    scores = edit(row, Draw(chosen, 0, mask=mask_of(allowed, size)), np.empty_like(row))
    assert set(np.flatnonzero(scores == 0).tolist()) == allowed
    assert (scores[scores != 0] == -np.inf).all()
