"""The benchmark of the wall runs and gives every figure; what the figures are is the machine's business."""

from collections.abc import Iterator
from typing import Any

import pytest

from muro.bench.report import lines, text
from muro.bench.wall import QUICK, run


def leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    else:
        yield value


@pytest.mark.timeout(180)
def test_every_figure_is_there_and_can_be_read() -> None:
    said: list[str] = []
    result = run(QUICK, said.append)
    for key in ("floor_us", "shaped_floor_us", "utility_us", "utility_async_us"):
        assert 0 < result[key]["p50"] <= result[key]["p99"]
    for key in ("add_to_finish_us", "add_to_finish_async_us"):
        assert result["floor_us"]["p50"] < result[key]["p50"] <= result[key]["p99"]
    assert set(result["streams"]) == {"1", "32", "256", "1024"}
    for flow in result["streams"].values():
        assert {
            "tokens_per_s",
            "generator_tokens_per_s",
            "backlog",
            "client_cpu_us_per_token",
            "engine_cpu_us_per_token",
        } <= set(flow)
        assert flow["tokens_per_s"] > 0
    for key in ("step_to_step_us", "bare_forward_us"):
        assert set(result[key]) == {"releasing", "holding"}
    for key in ("rss_mb", "idle_cpu_percent"):
        assert set(result[key]) == {"client", "engine"}
    for key in ("bare_generator_tokens_per_s", "loop_gap_us", "minimal_loop_gap_us", "startup_s"):
        assert result[key] > 0
    assert result["import_ms"] > 0
    assert result["base_import_ms"] > 0
    assert all(isinstance(leaf, int | float) for leaf in leaves(result))
    assert "loop" in " ".join(said)
    assert len(text(result).splitlines()) == len(lines(result)) > 20
