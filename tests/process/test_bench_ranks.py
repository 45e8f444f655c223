"""The benchmark of several ranks runs and gives every figure; what the figures are is the machine's business."""

import pytest

from muro.bench.ranks import Ranks, run, text


@pytest.mark.timeout(120)
def test_every_figure_is_there_and_can_be_read() -> None:
    result = run(Ranks(ranks=2, streams_per_rank=2, step_ms=2.0, tokens=100, rounds=1, killed_streams=8))
    assert result["one_tokens_s"] > 0 and result["all_tokens_s"] > 0
    assert result["disturbed"] == 0 and result["back_s"] > 0
    for key in ("quiet_ms", "killed_ms"):
        assert 0 < result[key]["p50"] <= result[key]["p99"] <= result[key]["max"]
    assert [line[0] in "+-" for line in text(result).splitlines()] == [True] * 5
