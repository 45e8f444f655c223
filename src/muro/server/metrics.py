"""Our numbers under the names that dashboards and load balancers know (`vllm:*`), in Prometheus' text format.

Names and labels are those of vLLM's documentation of its metrics. Only what is really counted here is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from muro.observe.metrics import EngineNumbers, Histogram, Numbers, ServingMetrics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_GAUGES: tuple[tuple[str, str, Callable[[EngineNumbers], float]], ...] = (
    ("num_requests_running", "Requests in the engine's running batch.", lambda e: e.running),
    ("num_requests_waiting", "Requests that wait to be processed.", lambda e: e.waiting),
    ("kv_cache_usage_perc", "Used part of the KV cache; 1 means all of it.", lambda e: e.kv_cache_usage),
)
_ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[EngineNumbers], float]], ...] = (
    ("prefix_cache_queries", "Tokens looked up in the prefix cache.", lambda e: e.prefix_cache_queries),
    ("prefix_cache_hits", "Tokens found in the prefix cache.", lambda e: e.prefix_cache_hits),
)
_COUNTERS: tuple[tuple[str, str, Callable[[ServingMetrics], float]], ...] = (
    ("prompt_tokens", "Tokens of prompts.", lambda m: m.prompt_tokens),
    ("generation_tokens", "Tokens generated.", lambda m: m.generation_tokens),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[ServingMetrics], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From arrival to the first token.", lambda m: m.time_to_first_token),
    ("inter_token_latency_seconds", "Between two tokens.", lambda m: m.inter_token_latency),
    (
        "request_time_per_output_token_seconds",
        "Mean time between the tokens of a request.",
        lambda m: m.time_per_output_token,
    ),
    ("time_per_output_token_seconds", "The same, as it was called before.", lambda m: m.time_per_output_token),
    ("e2e_request_latency_seconds", "From arrival to the last token.", lambda m: m.request_latency),
    ("request_queue_time_seconds", "Waiting in the engine.", lambda m: m.queue_time),
    ("request_prompt_tokens", "Tokens of a prompt.", lambda m: m.prompt_length),
    ("request_generation_tokens", "Tokens generated for a request.", lambda m: m.generation_length),
)
_LABELS = ("model_name", "engine")


def page(collectors: Iterable[Collector], *, process: bool) -> bytes:
    """The page as it is now; with `process`, what this process takes of the machine as well."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    if process:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


class ServingCollector(Collector):
    """The numbers of a served model, as what `prometheus_client` calls a collector."""

    def __init__(self, numbers: Numbers, model: str) -> None:
        self._numbers = numbers
        self._model = model

    def collect(self) -> Iterator[Metric]:
        metrics, model = self._numbers.serving, self._model
        # Requests of ours are all that is known of an engine that reports nothing itself.
        reports = [
            (str(rank), metrics.engines.get(rank) or EngineNumbers(running=count))
            for rank, count in sorted(self._numbers.in_flight.items())
        ]
        for name, words, read in _GAUGES:
            gauge = GaugeMetricFamily(f"vllm:{name}", words, labels=_LABELS)
            for rank, report in reports:
                gauge.add_metric((model, rank), read(report))
            yield gauge
        for name, words, read in _ENGINE_COUNTERS:
            counter = CounterMetricFamily(f"vllm:{name}", words, labels=_LABELS)
            for rank, report in reports:
                counter.add_metric((model, rank), read(report))
            yield counter
        # Front-end numbers are not kept per engine; they carry the first one's label, for dashboards that ask for one.
        front = (model, reports[0][0])
        for name, words, count in _COUNTERS:
            counter = CounterMetricFamily(f"vllm:{name}", words, labels=_LABELS)
            counter.add_metric(front, count(metrics))
            yield counter
        finished = CounterMetricFamily(
            "vllm:request_success", "Choices that ended, by reason.", labels=(*_LABELS, "finished_reason")
        )
        for reason in ("stop", "length", "abort", *sorted(metrics.finished.keys() - {"stop", "length", "abort"})):
            finished.add_metric((*front, reason), metrics.finished.get(reason, 0))
        yield finished
        for name, words, find in _HISTOGRAMS:
            histogram, numbers = HistogramMetricFamily(f"vllm:{name}", words, labels=_LABELS), find(metrics)
            histogram.add_metric(front, numbers.cumulative(), numbers.total)
            yield histogram
