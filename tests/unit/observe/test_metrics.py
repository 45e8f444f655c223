"""metrics.py: counting by bounds, and reports of engines."""

from __future__ import annotations

from muro.ids import EngineRank
from muro.observe.metrics import Histogram, ServingMetrics


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((1, 2.5))
    histogram.observe(1.0)
    histogram.observe(1.5, times=3)
    histogram.observe(100)
    assert histogram.cumulative() == [("1.0", 1), ("2.5", 4), ("+Inf", 5)]
    assert histogram.total == 105.5


def test_an_engines_reports_are_its_state_and_its_sums() -> None:
    metrics = ServingMetrics()
    metrics.engine_report(EngineRank(1), 3, 4, 0.5, 100, 10)
    metrics.engine_report(EngineRank(1), 2, 0, 0.25, 50, 5, now=12.5)
    numbers = metrics.engines[EngineRank(1)]
    assert (numbers.running, numbers.waiting, numbers.kv_cache_usage) == (2, 0, 0.25)
    assert (numbers.prefix_cache_queries, numbers.prefix_cache_hits) == (150, 15)
    assert numbers.reported_at == 12.5
