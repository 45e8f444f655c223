"""metrics.py: the page as Prometheus' own parser reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from muro.ids import EngineRank
from muro.observe.metrics import ChoiceClock, Numbers, ServingMetrics
from muro.server.metrics import ServingCollector, page


def values(metrics: ServingMetrics, in_flight: dict[EngineRank, int]) -> dict[tuple[str, str], float]:
    numbers = Numbers(serving=metrics, in_flight=in_flight)
    text = page([ServingCollector(numbers, "m")], process=True).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model_name") == "m":
                rest = {**sample.labels, "model_name": ""}
                found[sample.name, rest.get("finished_reason") or rest.get("le") or rest["engine"]] = sample.value
    return found


def test_the_names_that_dashboards_read() -> None:
    metrics = ServingMetrics()
    metrics.engine_report(EngineRank(0), 3, 4, 0.5, 100, 10)
    metrics.prompt_tokens = 7
    clock = ChoiceClock(metrics, 0.0)
    clock.tokens(1, 0.5)
    clock.tokens(2, 1.5)
    clock.finished("length", 7, 0.1, 1.5)
    found = values(metrics, {EngineRank(0): 1, EngineRank(1): 9})
    assert found["vllm:num_requests_running", "0"] == 3
    assert found["vllm:num_requests_running", "1"] == 9  # it reports nothing: what we have sent it
    assert found["vllm:num_requests_waiting", "0"] == 4
    assert found["vllm:kv_cache_usage_perc", "0"] == 0.5
    assert found["vllm:prefix_cache_queries_total", "0"] == 100
    assert found["vllm:prefix_cache_hits_total", "0"] == 10
    assert found["vllm:prompt_tokens_total", "0"] == 7
    assert found["vllm:generation_tokens_total", "0"] == 3
    assert found["vllm:request_success_total", "length"] == 1
    assert found["vllm:request_success_total", "stop"] == 0
    assert found["vllm:time_to_first_token_seconds_sum", "0"] == 0.5
    assert found["vllm:inter_token_latency_seconds_count", "0"] == 2
    assert found["vllm:request_time_per_output_token_seconds_sum", "0"] == 0.5
    assert found["vllm:e2e_request_latency_seconds_bucket", "+Inf"] == 1
    assert found["vllm:request_queue_time_seconds_sum", "0"] == 0.1
