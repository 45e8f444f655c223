"""candidates.py: what the filters leave, against full sorts; and that nobody near the top is left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.sampling import Sampling
from muro.core.sampling.candidates import NEAR, Filters
from muro.wire.request import SamplingParams
from tests.support.sampling import plain_filtered


@given(
    seed=st.integers(0, 2**32),
    vocab=st.integers(2, 200),
    temperature=st.sampled_from([1e-3, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 20, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.61, 0.2, 1e-6]),
    min_p=st.sampled_from([0.0, 0.003, 0.07, 0.9, 1.0]),
    limit=st.booleans(),
    forbid=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_filters_leave_what_sorting_leaves(
    seed: int, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float, limit: bool, forbid: bool
) -> None:
    generator = np.random.default_rng(seed)
    row = (generator.standard_normal(vocab) * 3).astype(np.float32)
    allowed = np.sort(generator.permutation(vocab)[: vocab // 2 + 1]) if limit else None
    if forbid:
        row[generator.permutation(vocab)[: vocab // 3]] = -np.inf
    among = row if allowed is None else row[allowed]
    if not np.isfinite(among.max()):
        return
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, allowed=allowed)
    found = Filters(vocab).candidates(row, sampling, 77, float(among.max()))
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        allowed_token_ids=None if allowed is None else allowed.tolist(),
    )  # fmt: skip
    expected = plain_filtered({i: float(s) for i, s in enumerate(row)}, params)
    ids = set(found.ids.tolist())
    if found.distance is None:
        # Whether the impossible stay in does not matter: they cannot win.
        assert {i for i in ids if row[i] > -np.inf} == {i for i in expected if row[i] > -np.inf}
    else:
        assert ids < set(expected)
        assert max(float(row[i]) for i in set(expected) - ids) < found.top - found.distance + 1e-6
    assert found.logits.tolist() == row[found.ids].tolist() and sorted(ids) == found.ids.tolist()
    assert (found.key, found.temperature) == (77, temperature)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_near_the_top_of_an_unfiltered_row(temperature: float) -> None:
    row = (np.random.default_rng(3).standard_normal(49152) * 4).astype(np.float32)
    top = float(row.max())
    sampling = Sampling(temperature=temperature)
    found = Filters(len(row)).candidates(row, sampling, 0, top)
    near = np.flatnonzero(row >= np.float32(top - NEAR * temperature))
    if 2 * len(near) < len(row):
        assert found.ids.tolist() == near.tolist()
        assert found.distance == pytest.approx(NEAR * temperature, abs=1e-5)
        assert float(np.delete(row, near).max()) < top - found.distance
    else:
        assert (len(found.ids), found.distance) == (len(row), None)
    some = np.array([int(row.argmin()), int(row.argmax())])
    more = Filters(len(row)).candidates(row, sampling, 0, top, some)
    assert (more.ids.tolist(), more.distance) == (sorted({*near.tolist(), *some.tolist()}), None)
