"""sampler.py against the plainest implementation of the same options, against the softmax, and in any company."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from muro.core.preprocess import Bounds
from muro.core.sampling import NO_TOKEN, Draw, PromptLogprobs, Sampler, SamplerState, Sampling
from muro.core.sampling.noise import Noise, gumbel, noise_key
from muro.core.sampling.options import sampling
from muro.core.sampling.settings import ThinkingMarkers
from muro.wire.request import SamplingParams
from tests.support.counts import count
from tests.support.sampling import plain_distribution, plain_filtered, plain_forced, plain_scores, plain_token

VOCAB = 40
MARKERS = ThinkingMarkers((1, 2), (3, 4))
tokens = st.integers(0, VOCAB - 1)
options = st.fixed_dictionaries(
    {"seed": st.integers(-(2**63), 2**63 - 1), "temperature": st.sampled_from([0.0, 1e-4, 0.3, 1.0, 2.5])},
    optional={
        "top_k": st.sampled_from([1, 3, 20, 1000]),
        "top_p": st.sampled_from([0.95, 0.61, 0.2, 1e-6]),
        "min_p": st.sampled_from([0.003, 0.07, 0.9, 1.0]),
        "allowed_token_ids": st.lists(tokens, min_size=1),
        "logit_bias": st.dictionaries(tokens, st.floats(-5, 5), max_size=5),
        "presence_penalty": st.sampled_from([0.7, -1.5]),
        "frequency_penalty": st.sampled_from([0.3, -2.0]),
        "repetition_penalty": st.sampled_from([1.3, 0.5]),
        "min_tokens": st.integers(0, 9),
        "bad_words_token_ids": st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=5),
        "thinking_token_budget": st.integers(0, 4),
        "logprobs": st.integers(-1, 3),
    },
)


def draw_for(params: SamplingParams, prompt: list[int], output: list[int], vocab: int = VOCAB) -> Draw:
    bounds = Bounds(max_model_len=10_000, vocab_size=vocab, max_logprobs=-1, thinking=MARKERS)
    chosen = sampling(params, bounds)
    if chosen.history is None:
        return Draw(chosen, len(output))
    return SamplerState(chosen.history, len(prompt)).draw(chosen, [*prompt, *output])


def rows(number: int, vocab: int, seed: int, spread: float = 2.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((number, vocab)) * spread).astype(np.float32)


@given(
    seed=st.integers(0, 2**32),
    asked=st.lists(options, min_size=1, max_size=4),
    stops=st.lists(tokens, max_size=3),
    texts=st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=9), st.lists(tokens, max_size=9)), min_size=4),
)
@settings(max_examples=150, deadline=None)
def test_same_choices_as_the_plain_definition(
    seed: int, asked: list[dict[str, object]], stops: list[int], texts: list[tuple[list[int], list[int]]]
) -> None:
    logits = rows(len(asked), VOCAB, seed, 3.0)
    draws, expected = [], []
    for row, option, (prompt, output) in zip(logits, asked, texts, strict=False):
        params = SamplingParams(max_tokens=None, all_stop_token_ids=stops, **option)  # type: ignore[arg-type]
        if params.allowed_token_ids is not None:
            params.allowed_token_ids.append(next(i for i in range(VOCAB) if i not in stops))
        draws.append(draw_for(params, prompt, output))
        forced = None
        if params.thinking_token_budget is not None:
            forced = plain_forced([*prompt, *output], MARKERS.start, MARKERS.end, params.thinking_token_budget)
        token = plain_token(row, params, prompt, output) if forced is None else forced
        expected.append(NO_TOKEN if token is None else token)
    assert Sampler(VOCAB).sample(logits, draws).token_ids == expected


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_leaving_most_of_a_wide_row_out_never_loses_the_winner(temperature: float) -> None:
    logits = rows(24, 49152, seed=3, spread=4.0)
    noise, every = Noise(49152), np.arange(49152)
    draws = [Draw(Sampling(temperature=temperature, seed=i), i) for i in range(len(logits))]
    keys = [np.array([noise_key(i, i)], np.uint64) for i in range(len(logits))]
    sums = [
        row.astype(np.float64) / temperature + gumbel(noise.hashes(key, np.array([49152]), every))
        for row, key in zip(logits, keys, strict=True)
    ]
    assert Sampler(49152).sample(logits, draws).token_ids == [int(s.argmax()) for s in sums]


def test_an_id_far_below_the_top_wins_as_often_as_it_should() -> None:
    """20,000 ids that are 14 units below the best, which are hardly ever looked at, win once in 61 draws."""
    vocab, number = 1 << 16, 1500
    row = np.full(vocab, -30.0, np.float32)
    row[1000:21_000] = -14.0
    row[5] = 0.0
    logits = np.broadcast_to(row, (number, vocab))
    drawn = Sampler(vocab).sample(logits, [Draw(Sampling(seed=i), 0) for i in range(number)]).token_ids
    far = sum(1000 <= token < 21_000 for token in drawn)
    assert far + drawn.count(5) == number
    share = 20_000 * math.exp(-14.0) / (1 + 20_000 * math.exp(-14.0))
    assert abs(far - number * share) < 3.3 * math.sqrt(number * share)


def chi_squared(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def quantile(freedom: int) -> float:
    """The 99.9 % quantile of chi-squared, as Wilson and Hilferty (1931) approximate it."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 3.0902 * math.sqrt(part)) ** 3


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize(
    "option",
    [
        {"temperature": 1.3},
        {"temperature": 0.6},
        {"temperature": 1.3, "top_k": 7},
        {"temperature": 1.1, "top_p": 0.8},
        {"temperature": 0.9, "min_p": 0.1},
        {"presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"repetition_penalty": 1.6, "temperature": 0.8},
        {"logit_bias": {3: 2.5, 4: -1.0, 7: 1.5}, "allowed_token_ids": [*range(2, 20)]},
        {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "presence_penalty": -0.6, "bad_words_token_ids": [[4], [9, 5]]},
    ],
    ids="+".join,
)
def test_draws_follow_the_softmax(option: dict[str, object], vary: str) -> None:
    number, vocab = count(4_000, 20_000), 32
    row = rows(1, vocab, seed=1, spread=1.0)[0]
    prompt, output = [1, 2, 3, 3], [3, 8, 8, 9, 9]
    params = SamplingParams(max_tokens=None, **option)  # type: ignore[arg-type]
    share = plain_distribution(plain_filtered(plain_scores(row, params, prompt, output), params), vocab)
    draws = []
    for i in range(number):
        params.seed = i if vary == "seed" else 99
        draw = draw_for(params, prompt, output, vocab)
        draw.position = i if vary == "position" else 0
        draws.append(draw)
    drawn = Sampler(vocab).sample(np.broadcast_to(row, (number, vocab)), draws).token_ids
    counts = np.bincount(drawn, minlength=vocab).astype(np.float64)
    possible = share > 0
    assert counts[~possible].sum() == 0
    assert chi_squared(counts[possible], number * share[possible]) < quantile(int(possible.sum()) - 1)


def test_successive_draws_are_independent() -> None:
    number, vocab = 20_000, 8
    draws = [Draw(Sampling(seed=5), i) for i in range(number)]
    drawn = np.array(Sampler(vocab).sample(np.zeros((number, vocab), np.float32), draws).token_ids)
    pairs = np.bincount(drawn[:-1] * vocab + drawn[1:], minlength=vocab * vocab).astype(np.float64)
    assert chi_squared(pairs, np.full(vocab * vocab, (number - 1) / vocab**2)) < quantile(vocab * vocab - 1)


COMPANY: list[dict[str, object]] = [
    {"seed": 1},
    {"temperature": 0.0, "logprobs": 2},
    {"seed": 2, "top_k": 5},
    {"seed": 3, "top_p": 0.8},
    {"seed": 4, "min_p": 0.1, "logprobs": 0},
    {"seed": 5, "temperature": 0.4, "top_k": 50, "top_p": 0.9},
    {"seed": 6, "allowed_token_ids": [*range(3, 900, 7)]},
    {"seed": 7, "logprobs": -1},
    {"seed": 8, "temperature": 9.0},
    {"seed": 9, "presence_penalty": 1.0, "repetition_penalty": 1.2, "logit_bias": {5: 3.0}},
    {"temperature": 0.0, "frequency_penalty": 0.5, "bad_words_token_ids": [[7], [9, 8]]},
    {"seed": 10, "logprob_token_ids": [3, 1]},
    {"seed": 11, "thinking_token_budget": 1},
]


def test_a_row_does_not_depend_on_its_batch() -> None:
    number, vocab = len(COMPANY), 1001
    logits = rows(number, vocab, seed=4)
    draws = []
    for position, option in enumerate(COMPANY):
        params = SamplingParams(max_tokens=None, **option)  # type: ignore[arg-type]
        draws.append(draw_for(params, [1, 2, 5], [9] * position, vocab))
    sampler = Sampler(vocab)
    together = sampler.sample(logits, draws)
    for i in (*range(number), *reversed(range(number))):
        alone = Sampler(vocab).sample(logits[i : i + 1].copy(), [draws[i]])
        assert (alone.token_ids[0], alone.logprobs[0]) == (together.token_ids[i], together.logprobs[i])
    order = np.random.default_rng(1).permutation(number).tolist()
    shuffled = sampler.sample(logits[order], [draws[i] for i in order])
    assert shuffled.token_ids == [together.token_ids[i] for i in order]
    assert shuffled.logprobs == [together.logprobs[i] for i in order]


def test_drawing_from_more_candidates_than_fit_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = rows(30, 300, seed=12)
    draws: list[Draw | None] = [Draw(Sampling(seed=i, top_k=i * 10), i) for i in range(30)]
    expected = Sampler(300).sample(logits, draws).token_ids
    for size in (0, 100, 1000):
        monkeypatch.setattr("muro.core.sampling.sampler._AT_ONCE", size)
        assert Sampler(300).sample(logits, draws).token_ids == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "option",
    [{"temperature": 0.0}, {}, {"top_k": 3, "logprobs": 2}, {"presence_penalty": 1.0}, {"logit_bias": {1: 1.0}}],
)
def test_a_row_without_usable_scores_gives_no_token_and_hurts_no_other(bad: float, option: dict[str, object]) -> None:
    logits = rows(3, VOCAB, seed=5)
    logits[1, 20] = bad
    draw = draw_for(SamplingParams(**option), [1], [2])  # type: ignore[arg-type]
    sampled = Sampler(VOCAB).sample(logits, [draw] * 3)
    assert sampled.token_ids[1] == NO_TOKEN and sampled.logprobs[1] is None
    assert NO_TOKEN not in (sampled.token_ids[0], sampled.token_ids[2])


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("option", [{}, {"min_p": 0.1}, {"top_k": 3}, {"top_p": 1e-300}, {"logit_bias": {7: -1e300}}])
@pytest.mark.parametrize("size", [VOCAB, 20_000])
def test_numbers_as_far_apart_as_they_go(temperature: float, option: dict[str, object], size: int) -> None:
    """No warning, no work without bound, and the only token that can come comes."""
    logits = np.full((3, size), -3e38, np.float32)
    logits[0, 5] = 3e38
    logits[1, :5], logits[1, 5], logits[1, 6:] = -np.inf, -3e38, -np.inf
    logits[2] = -np.inf
    logits[2, 5] = 0.0
    params = SamplingParams(temperature=temperature, seed=1, logprobs=2, **option)  # type: ignore[arg-type]
    sampled = Sampler(size).sample(logits, [draw_for(params, [1], [2], size)] * 3)
    assert sampled.token_ids[1:] == [5, 5]
    assert sampled.token_ids[0] == 5 or temperature >= 1e30  # so hot that even these distances are nothing
    assert all(logprobs is not None for logprobs in sampled.logprobs)


def test_everything_forbidden_gives_no_token() -> None:
    logits = rows(4, 5, seed=6)
    logits[1] = -np.inf
    some = np.array([1, 2])
    draws = [
        Draw(Sampling(allowed=some), 0, [some]),
        Draw(Sampling(), 0),
        Draw(Sampling(temperature=0.0), 0, mask=np.zeros(1, np.uint32)),
        Draw(Sampling(), 0, mask=np.array([8], np.uint32)),
    ]
    assert Sampler(5).sample(logits, draws).token_ids == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 3]


def test_a_skipped_row_gives_no_token() -> None:
    sampled = Sampler(5).sample(rows(2, 5, seed=7), [None, Draw(Sampling(temperature=0.0), 0)])
    assert sampled.token_ids[0] == NO_TOKEN and sampled.token_ids[1] >= 0
    assert Sampler(5).sample(np.empty((0, 5), np.float32), []).token_ids == []


def test_logits_are_left_as_they_were() -> None:
    logits = rows(1, 100, seed=8)
    before = logits.copy()
    params = SamplingParams(
        top_k=5, top_p=0.5, min_p=0.1, logprobs=3, logit_bias={1: 1.0}, presence_penalty=1.0, bad_words_token_ids=[[3]]
    )
    Sampler(100).sample(logits, [draw_for(params, [1], [2], 100)])
    assert (logits == before).all()


def test_log_probabilities_are_those_of_the_model_whatever_was_done_to_the_scores() -> None:
    logits = rows(1, VOCAB, seed=9)
    params = SamplingParams(logit_bias={7: 100.0}, presence_penalty=1.0, temperature=0.3, logprobs=2, top_k=1)
    sampled = Sampler(VOCAB).sample(logits, [draw_for(params, [1], [7])])
    plain = Sampler(VOCAB).sample(logits, [draw_for(SamplingParams(allowed_token_ids=[7], logprobs=2), [1], [])])
    assert sampled.token_ids == [7] and sampled.logprobs == plain.logprobs and sampled.logprobs[0] is not None


def test_reading_a_prompt() -> None:
    logits = rows(3, VOCAB, seed=10)
    prompt = PromptLogprobs(1, VOCAB)
    Sampler(VOCAB).read_prompt(prompt, logits, [5, 6, 7])
    found = prompt.result()
    assert found.ids.numpy()[:, 0].tolist() == [5, 6, 7]
    assert found.ids.numpy()[:, 1].tolist() == logits.argmax(axis=1).tolist()
