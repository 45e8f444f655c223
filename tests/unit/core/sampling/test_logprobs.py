"""logprobs.py against a softmax in double precision and a full sort."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.sampling.logprobs import Columns, PromptLogprobs, sample_logprobs
from muro.wire.output import Logprobs


def random_row(seed: int, size: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def exact(row: np.ndarray) -> np.ndarray:
    wide = row.astype(np.float64)
    return wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())


def read(logprobs: Logprobs) -> tuple[np.ndarray, np.ndarray, list[int]]:
    assert logprobs.cu is None
    return logprobs.ids.numpy(), logprobs.values.numpy(), logprobs.ranks.numpy().tolist()


@pytest.mark.parametrize("top", [0, 1, 5, 99, 100, -1])
def test_of_a_chosen_token(top: int) -> None:
    row = random_row(9, 100)
    order = np.argsort(-row, kind="stable")
    token = int(order[7])
    found = sample_logprobs(Columns(100), row, token, top)
    assert (found.ids.dtype, found.values.dtype, found.ranks.dtype) == ("<i4", "<f4", "<i8")
    ids, values, ranks = read(found)
    assert ids.tolist() == [[token, *order[: 100 if top == -1 else top].tolist()]]
    assert values[0] == pytest.approx(exact(row)[ids[0]], abs=1e-5)
    assert ranks == [8]


@given(st.integers(0, 2**32), st.sampled_from([7, 300, 9000]), st.integers(0, 6), st.data())
@settings(max_examples=100, deadline=None)
def test_columns_and_ranks(seed: int, size: int, top: int, data: st.DataObject) -> None:
    row = np.round(random_row(seed, size), data.draw(st.sampled_from([0, 3])))  # with and without ties
    token = data.draw(st.sampled_from([int(row.argmax()), int(row.argmin()), seed % size]))
    others = data.draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
    found = sample_logprobs(Columns(size), row, token, top, None if others is None else np.array(others))
    ids, values, ranks = read(found)
    best = np.argsort(-row, kind="stable")[:top]
    assert ids.tolist() == [[token, *best.tolist(), *(others or [])]]
    assert values[0] == pytest.approx(exact(row)[ids[0]], abs=1e-5)
    assert ranks == [int((row > row[token]).sum()) + 1]


def test_equal_scores_rank_by_id_and_never_zero() -> None:
    ids, _, ranks = read(sample_logprobs(Columns(6), np.zeros(6, np.float32), 4, 3))
    assert (ids.tolist(), ranks) == ([[4, 0, 1, 2]], [1])


@pytest.mark.parametrize("top", [0, 2, -1])
def test_of_a_prompt_in_chunks(top: int) -> None:
    size, prompt = 50, [3, 1, 4, 1, 5, 9]
    rows = np.array([random_row(seed, size) for seed in range(len(prompt) - 1)])
    whole, parts, columns = PromptLogprobs(top, size), PromptLogprobs(top, size), Columns(size)
    for row, token in zip(rows, prompt[1:], strict=True):
        whole.add(columns, row, token)
    for begin, end in ((0, 2), (2, 5)):
        for i in range(begin, end):
            parts.add(Columns(size), rows[i], prompt[i + 1])
            assert len(parts) == i + 1
    assert whole.result() == parts.result()
    found = whole.result()
    assert (found.ids.dtype, found.values.dtype, found.ranks.dtype) == ("int32", "float32", "int32")
    ids, values, ranks = read(found)
    assert ids.shape == values.shape == (5, 1 + (size if top == -1 else top))
    for i, row in enumerate(rows):
        order = np.argsort(-row, kind="stable")
        assert ids[i].tolist() == [prompt[i + 1], *order[: size if top == -1 else top].tolist()]
        assert values[i] == pytest.approx(exact(row)[ids[i]], abs=1e-5)
        assert ranks[i] == order.tolist().index(prompt[i + 1]) + 1


def test_of_a_prompt_of_one_token_there_are_none() -> None:
    found = PromptLogprobs(3, 50).result()
    assert (found.ids.shape, found.values.shape, found.ranks.shape) == ([0, 4], [0, 4], [0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_unusable_logits_of_a_prompt_are_said_to_be_no_numbers(bad: float) -> None:
    row = random_row(1, 20)
    row[4] = bad
    prompt = PromptLogprobs(2, 20)
    prompt.add(Columns(20), row, 7)
    ids, values, ranks = read(prompt.result())
    assert np.isnan(values).all() and ids[0, 0] == 7 and ranks[0] >= 1
