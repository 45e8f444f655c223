"""What happened to requests and how engines are, as plain numbers. Who shows them, and under which names, is not here.

Written and read in one thread. Recording a token costs a fraction of a microsecond; that is why these are not the
metric objects of a library, which take a lock each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from muro.ids import EngineRank

FIRST_TOKEN_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
BETWEEN_TOKENS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
REQUEST_BOUNDS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
TOKENS_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Histogram:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """Values up to each bound and above the one before; the last: above all bounds."""
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Write a value down, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """(bound, number of values up to it), ending with "+Inf"."""
        rows, seen = [], 0
        for bound, count in zip([*map(float, self.bounds), float("inf")], self.counts, strict=True):
            seen += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), seen))
        return rows


class EngineNumbers(msgspec.Struct):
    """One engine's last report, and sums over all its reports; `kv_cache_usage` is 0 ... 1."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    reported_at: float | None = None
    """When the last report came, on the clock of who told of it."""


class ServingMetrics:
    """Everything that is written down about one served model. Times in seconds."""

    def __init__(self) -> None:
        self.engines: dict[EngineRank, EngineNumbers] = {}
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished: dict[str, int] = {}
        """Choices that ended, by finish reason."""
        self.replayed = 0
        """Attempts that were lost with their engine and made again."""
        self.quarantined = 0
        """Choices that were given up because they end engines."""
        self.time_to_first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.inter_token_latency = Histogram(BETWEEN_TOKENS_BOUNDS)
        self.time_per_output_token = Histogram(BETWEEN_TOKENS_BOUNDS)
        self.request_latency = Histogram(REQUEST_BOUNDS)
        self.queue_time = Histogram(REQUEST_BOUNDS)
        self.prompt_length = Histogram(TOKENS_BOUNDS)
        self.generation_length = Histogram(TOKENS_BOUNDS)

    def engine_report(
        self,
        rank: EngineRank,
        running: int,
        waiting: int,
        kv_cache_usage: float,
        queries: int,
        hits: int,
        now: float | None = None,
    ) -> None:
        """An engine's news at `now`; `queries` and `hits` are tokens since its last report."""
        numbers = self.engines.setdefault(rank, EngineNumbers())
        numbers.running = running
        numbers.waiting = waiting
        numbers.kv_cache_usage = kv_cache_usage
        numbers.prefix_cache_queries += queries
        numbers.prefix_cache_hits += hits
        numbers.reported_at = now


class ChoiceClock:
    """The times of one choice, written down as it goes.

    Args:
        metrics: where they go.
        began: when its request arrived, on the clock of all other calls.
    """

    __slots__ = ("_began", "_first", "_last", "_metrics", "_num_tokens")

    def __init__(self, metrics: ServingMetrics, began: float) -> None:
        self._metrics = metrics
        self._began = began
        self._first = self._last = 0.0
        self._num_tokens = 0

    def tokens(self, count: int, now: float) -> None:
        """So many tokens came at once. What comes together counts as evenly spaced."""
        metrics = self._metrics
        metrics.generation_tokens += count
        if self._num_tokens:
            metrics.inter_token_latency.observe((now - self._last) / count, count)
        else:
            self._first = now
            metrics.time_to_first_token.observe(now - self._began)
        self._last = now
        self._num_tokens += count

    def finished(self, reason: str, num_prompt_tokens: int, queued: float | None, now: float) -> None:
        """It ended with this reason."""
        metrics = self._metrics
        metrics.finished[reason] = metrics.finished.get(reason, 0) + 1
        metrics.request_latency.observe(now - self._began)
        metrics.prompt_length.observe(num_prompt_tokens)
        metrics.generation_length.observe(self._num_tokens)
        if queued is not None:
            metrics.queue_time.observe(queued)
        if self._num_tokens > 1:
            metrics.time_per_output_token.observe((self._last - self._first) / (self._num_tokens - 1))
