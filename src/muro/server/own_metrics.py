"""Our own numbers (`muro:*`): each bound of the HTTP side with what it bounds, how requests ended, how engines are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from muro.server.health import EngineHealth, engine_health
from muro.server.service import Service

_GAUGES: tuple[tuple[str, str, Callable[[Service], float]], ...] = (
    ("connections", "Open connections of callers.", lambda s: s.connections.open),
    ("connections_limit", "How many there may be.", lambda s: s.connections.most),
    ("queued_requests", "Choices that wait for their first token.", lambda s: s.admission.queued_requests),
    ("queued_requests_limit", "How many there may be.", lambda s: s.limits.max_queued_requests),
    ("queued_prompt_tokens", "Tokens of the prompts that wait so.", lambda s: s.admission.queued_tokens),
    ("queued_prompt_tokens_limit", "How many there may be.", lambda s: s.limits.max_queued_tokens),
    ("held_body_bytes", "Bytes of bodies that are being received or read.", lambda s: s.admission.held_body_bytes),
    ("held_body_bytes_limit", "How many there may be.", lambda s: s.limits.max_held_body_bytes),
    ("requests_in_progress", "Generating requests that are being answered.", lambda s: s.busy),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Service], float]], ...] = (
    ("connections_refused", "Connections that were one too many.", lambda s: s.connections.refused),
    ("slow_heads", "Connections closed because a head did not arrive in time.", lambda s: s.connections.slow_heads),
    ("slow_readers", "Connections closed because their reader took nothing.", lambda s: s.connections.slow_readers),
    ("requests_replayed", "Attempts lost with their engine and made again.", lambda s: s.llm.metrics.replayed),
    ("requests_quarantined", "Choices given up because they end engines.", lambda s: s.llm.metrics.quarantined),
)
_ENGINE_GAUGES: tuple[tuple[str, str, Callable[[EngineHealth], float | None]], ...] = (
    ("engine_up", "Whether the engine serves.", lambda e: e.state in ("serving", "leaving")),
    ("engine_generation", "How often the engine was replaced.", lambda e: e.generation),
    ("engine_uptime_seconds", "Since the engine is ready.", lambda e: e.uptime),
    ("engine_last_step_age_seconds", "Since the engine's last step ended.", lambda e: e.last_step_age),
    ("engine_step_age_seconds", "Since the step under way began; 0 between steps.", lambda e: e.step_age or 0),
    ("engine_steps", "Steps that it has ended since it was started.", lambda e: e.steps),
    ("engine_loading_percent", "How far its loading is; 100 once it serves.", lambda e: e.percent),
)


class OwnCollector(Collector):
    """What `prometheus_client` calls a collector."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service, model = self._service, self._service.names[0]
        for name, words, read in _GAUGES:
            gauge = GaugeMetricFamily(f"muro:{name}", words, labels=("model_name",))
            gauge.add_metric((model,), read(service))
            yield gauge
        for name, words, read in _COUNTERS:
            counter = CounterMetricFamily(f"muro:{name}", words, labels=("model_name",))
            counter.add_metric((model,), read(service))
            yield counter
        yield self._counted(
            "requests_refused", "Refused because a bound was reached.", "bound", service.admission.refused
        )
        yield self._counted("requests", "Generating requests that have ended, by how.", "outcome", service.outcomes)
        now_ns = time.monotonic_ns()
        engines = [engine_health(status, now_ns) for status in service.llm.engines()]
        for name, words, find in _ENGINE_GAUGES:
            gauge = GaugeMetricFamily(f"muro:{name}", words, labels=("model_name", "engine"))
            for engine in engines:
                if (value := find(engine)) is not None:
                    gauge.add_metric((model, str(engine.rank)), value)
            yield gauge
        restarts = CounterMetricFamily(
            "muro:engine_restarts", "Successors started on its rank.", labels=("model_name", "engine")
        )
        for engine in engines:
            restarts.add_metric((model, str(engine.rank)), engine.restarts)
        yield restarts
        gauge = GaugeMetricFamily(
            "muro:engine_last_report_age_seconds",
            "Since the engine's last statistics came.",
            labels=("model_name", "engine"),
        )
        for rank, numbers in sorted(service.llm.metrics.engines.items()):
            if numbers.reported_at is not None:
                gauge.add_metric((model, str(rank)), max(0.0, now_ns / 1e9 - numbers.reported_at))
        yield gauge

    def _counted(self, name: str, words: str, label: str, counts: dict[str, int]) -> Metric:
        counter = CounterMetricFamily(f"muro:{name}", words, labels=("model_name", label))
        for key, count in sorted(counts.items()):
            counter.add_metric((self._service.names[0], key), count)
        return counter
