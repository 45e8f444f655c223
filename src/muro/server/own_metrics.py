"""Our own numbers (`muro:*`): each bound of the HTTP side with what it bounds, how requests ended, how engines are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from muro.observe.metrics import Numbers
from muro.server.health import EngineHealth, Health, ServerHealth
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
    ("malformed_requests", "Requests that were no HTTP.", lambda s: s.connections.malformed),
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


_BY_WORD: tuple[tuple[str, str, str, Callable[[Service], dict[str, int]]], ...] = (
    ("requests_refused", "Refused because a bound was reached.", "bound", lambda s: s.admission.refused),
    ("requests", "Generating requests that have ended, by how.", "outcome", lambda s: s.outcomes),
)
_SERVER_GAUGES: tuple[tuple[str, str, Callable[[ServerHealth], float | None]], ...] = (
    ("server_up", "Whether the server process serves.", lambda s: s.state == "serving"),
    ("server_generation", "How often the server process was replaced.", lambda s: s.generation),
    ("server_uptime_seconds", "Since the server process serves.", lambda s: s.uptime),
)


def numbers_of(service: Service) -> Numbers:
    """The numbers of one server as they are now; they go on changing with it."""
    return Numbers(
        serving=service.llm.metrics,
        gauges={name: read(service) for name, _, read in _GAUGES},
        counters={name: read(service) for name, _, read in _COUNTERS},
        by_word={name: dict(read(service)) for name, _, _, read in _BY_WORD},
        in_flight={status.rank: status.in_flight for status in service.llm.engines()},
        load_counted_at=service.llm.client.load_counted_at(),
    )


class OwnCollector(Collector):
    """What `prometheus_client` calls a collector.

    Args:
        numbers: of one server, or of all together.
        model: its name.
        health: how engines and servers are.
        now: on the monotonic clock.
    """

    def __init__(self, numbers: Numbers, model: str, health: Health, now: float) -> None:
        self._numbers = numbers
        self._model = model
        self._health = health
        self._now = now

    def collect(self) -> Iterator[Metric]:
        yield from self._counted()
        engines = [(str(engine.rank), engine) for engine in self._health.engines]
        for name, words, find in _ENGINE_GAUGES:
            yield self._gauge(name, words, "engine", {rank: find(engine) for rank, engine in engines})
        restarts = CounterMetricFamily(
            "muro:engine_restarts", "Successors started on its rank.", labels=("model_name", "engine")
        )
        for rank, engine in engines:
            restarts.add_metric((self._model, rank), engine.restarts)
        yield restarts
        ages = {
            str(rank): None if numbers.reported_at is None else max(0.0, self._now - numbers.reported_at)
            for rank, numbers in sorted(self._numbers.serving.engines.items())
        }
        yield self._gauge("engine_last_report_age_seconds", "Since the engine's last statistics came.", "engine", ages)
        if (counted_at := self._numbers.load_counted_at) is not None:
            words = "Since the coordinator's last report of all engines' load came; of several servers the oldest."
            age = GaugeMetricFamily("muro:load_report_age_seconds", words, labels=("model_name",))
            age.add_metric((self._model,), max(0.0, self._now - counted_at))
            yield age
        for name, words, look in _SERVER_GAUGES if self._health.servers else ():
            values = {str(server.server): look(server) for server in self._health.servers}
            yield self._gauge(name, words, "server", values)

    def _counted(self) -> Iterator[Metric]:
        numbers, model = self._numbers, self._model
        for name, words, _ in _GAUGES:
            gauge = GaugeMetricFamily(f"muro:{name}", words, labels=("model_name",))
            gauge.add_metric((model,), numbers.gauges.get(name, 0))
            yield gauge
        for name, words, _ in _COUNTERS:
            counter = CounterMetricFamily(f"muro:{name}", words, labels=("model_name",))
            counter.add_metric((model,), numbers.counters.get(name, 0))
            yield counter
        for name, words, label, _ in _BY_WORD:
            counter = CounterMetricFamily(f"muro:{name}", words, labels=("model_name", label))
            for key, count in sorted(numbers.by_word.get(name, {}).items()):
                counter.add_metric((model, key), count)
            yield counter

    def _gauge(self, name: str, words: str, label: str, values: dict[str, float | None]) -> Metric:
        gauge = GaugeMetricFamily(f"muro:{name}", words, labels=("model_name", label))
        for key, value in values.items():
            if value is not None:
                gauge.add_metric((self._model, key), value)
        return gauge
