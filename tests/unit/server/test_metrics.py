"""metrics.py: the page as Prometheus' own parser reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from muro.ids import EngineRank
from muro.observe.metrics import ChoiceClock, Numbers, ServingMetrics
from muro.server.health import EngineHealth, Health, QueueHealth, ServerHealth
from muro.server.metrics import ServingCollector, page
from muro.server.own_metrics import OwnCollector


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


def test_numbers_of_our_own_and_of_several_servers() -> None:
    numbers = Numbers(
        gauges={"connections": 3},
        counters={"slow_heads": 2},
        by_word={"requests_refused": {"tokens": 4}},
    )
    numbers.serving.engine_report(EngineRank(1), 1, 1, 0.5, 1, 1, now=90.0)
    health = Health(
        status="ok",
        engines=[EngineHealth(rank=0, state="serving", uptime=7.0), EngineHealth(rank=1, state="restarting")],
        queue=QueueHealth(0, 0),
        servers=[ServerHealth(server=0, state="serving", uptime=5.0), ServerHealth(server=1, state="restarting")],
    )
    lines = page([OwnCollector(numbers, "m", health, 100.0)], process=False).decode().splitlines()
    assert not any(line.startswith("process_") for line in lines)
    for line in (
        'muro:connections{model_name="m"} 3.0',
        'muro:connections_limit{model_name="m"} 0.0',
        'muro:slow_heads_total{model_name="m"} 2.0',
        'muro:requests_refused_total{bound="tokens",model_name="m"} 4.0',
        'muro:engine_up{engine="0",model_name="m"} 1.0',
        'muro:engine_up{engine="1",model_name="m"} 0.0',
        'muro:engine_uptime_seconds{engine="0",model_name="m"} 7.0',
        'muro:engine_last_report_age_seconds{engine="1",model_name="m"} 10.0',
        'muro:server_up{model_name="m",server="0"} 1.0',
        'muro:server_up{model_name="m",server="1"} 0.0',
        'muro:server_uptime_seconds{model_name="m",server="0"} 5.0',
    ):
        assert line in lines
    assert not any('server_uptime_seconds{model_name="m",server="1"' in line for line in lines)
