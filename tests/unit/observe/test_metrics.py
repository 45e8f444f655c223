"""metrics.py: counting by bounds, and reports of engines."""

from __future__ import annotations

import msgspec

from muro.ids import EngineRank
from muro.observe.metrics import Histogram, Numbers, ServingMetrics


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


def test_numbers_of_several_servers_add_up() -> None:
    one, other = Numbers(), Numbers()
    for numbers, tokens in ((one, 5), (other, 7)):
        numbers.serving.generation_tokens = tokens
        numbers.serving.finished["stop"] = tokens
        numbers.serving.request_latency.observe(0.2, tokens)
        numbers.gauges["connections"] = tokens
        numbers.counters["slow_heads"] = tokens
        numbers.by_word["requests"] = {"done": tokens}
        numbers.in_flight[EngineRank(0)] = tokens
    other.by_word["requests"]["left"] = 1
    one.serving.engine_report(EngineRank(0), 3, 4, 0.5, 100, 10, now=20.0)
    other.serving.engine_report(EngineRank(0), 9, 9, 0.9, 50, 5, now=10.0)
    total = Numbers()
    total.add(one)
    total.add(other)
    assert total.serving.generation_tokens == 12 and total.serving.finished == {"stop": 12}
    assert total.serving.request_latency.cumulative()[-1] == ("+Inf", 12)
    assert total.gauges == {"connections": 12} and total.counters == {"slow_heads": 12}
    assert total.by_word == {"requests": {"done": 12, "left": 1}} and total.in_flight == {0: 12}
    engine = total.serving.engines[EngineRank(0)]
    assert (engine.running, engine.waiting, engine.kv_cache_usage) == (3, 4, 0.5), "the newest report counts"
    assert (engine.prefix_cache_queries, engine.prefix_cache_hits) == (150, 15), "each report came to one of them"
    assert one.serving.generation_tokens == 5 and one.by_word == {"requests": {"done": 5}}, "nobody's own are changed"


def test_what_remains_of_a_server_that_has_gone_is_what_has_happened() -> None:
    numbers = Numbers(gauges={"connections": 3}, counters={"slow_heads": 2}, in_flight={EngineRank(0): 3})
    remains = numbers.remains()
    assert (remains.gauges, remains.in_flight, remains.counters) == ({}, {}, {"slow_heads": 2})
    assert numbers.gauges == {"connections": 3}


def test_numbers_travel() -> None:
    numbers = Numbers(counters={"a": 1.0})
    numbers.serving.engine_report(EngineRank(3), 3, 4, 0.5, 100, 10, now=20.0)
    numbers.serving.time_to_first_token.observe(0.3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=Numbers) == numbers


def test_of_several_servers_the_oldest_report_of_load_counts() -> None:
    total = Numbers()
    for heard in (None, 7.0, 5.0, None, 9.0):
        total.add(Numbers(load_counted_at=heard))
    assert total.load_counted_at == 5.0
    assert total.remains().load_counted_at is None
