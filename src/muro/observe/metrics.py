"""What happened to requests and how engines are, as plain numbers. Who shows them, and under which names, is not here.

They can be added up: several servers over the same engines have numbers in common (see `Numbers`).

Written and read in one thread. Recording a token costs a fraction of a microsecond; that is why these are not the
metric objects of a library, which take a lock each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from muro.ids import EngineRank

Key = TypeVar("Key")
Number = TypeVar("Number", int, float)

FIRST_TOKEN_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
BETWEEN_TOKENS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
REQUEST_BOUNDS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
TOKENS_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Histogram(msgspec.Struct):
    """Counts of values by upper bound, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = []
    """Values up to each bound and above the one before; the last: above all bounds."""
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Write a value down, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, other: Histogram) -> None:
        """Add what was written down elsewhere, with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

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

    def add(self, other: EngineNumbers) -> None:
        """Add the reports that somebody else got of the same engine: each goes to one of us."""
        if (other.reported_at or 0.0) > (self.reported_at or 0.0):
            self.running, self.waiting = other.running, other.waiting
            self.kv_cache_usage, self.reported_at = other.kv_cache_usage, other.reported_at
        self.prefix_cache_queries += other.prefix_cache_queries
        self.prefix_cache_hits += other.prefix_cache_hits


def _histogram(bounds: Sequence[float]) -> Histogram:
    made: Histogram = msgspec.field(default_factory=lambda: Histogram(tuple(bounds)))
    return made


class ServingMetrics(msgspec.Struct):
    """Everything that is written down about one served model. Times in seconds."""

    engines: dict[EngineRank, EngineNumbers] = {}
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = {}
    """Choices that ended, by finish reason."""
    replayed: int = 0
    """Attempts that were lost with their engine and made again."""
    quarantined: int = 0
    """Choices that were given up because they end engines."""
    time_to_first_token: Histogram = _histogram(FIRST_TOKEN_BOUNDS)
    inter_token_latency: Histogram = _histogram(BETWEEN_TOKENS_BOUNDS)
    time_per_output_token: Histogram = _histogram(BETWEEN_TOKENS_BOUNDS)
    request_latency: Histogram = _histogram(REQUEST_BOUNDS)
    queue_time: Histogram = _histogram(REQUEST_BOUNDS)
    prompt_length: Histogram = _histogram(TOKENS_BOUNDS)
    generation_length: Histogram = _histogram(TOKENS_BOUNDS)

    def add(self, other: ServingMetrics) -> None:
        """Add what another server has written down about the same model."""
        for rank, numbers in other.engines.items():
            self.engines.setdefault(rank, EngineNumbers()).add(numbers)
        add_counts(self.finished, other.finished)
        for name in ("prompt_tokens", "generation_tokens", "replayed", "quarantined"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in self.__struct_fields__:
            if isinstance(histogram := getattr(self, name), Histogram):
                histogram.add(getattr(other, name))

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


class Numbers(msgspec.Struct):
    """All numbers of one server, or of several together; by the names under which they are shown."""

    serving: ServingMetrics = msgspec.field(default_factory=ServingMetrics)
    gauges: dict[str, float] = {}
    """How things are now."""
    counters: dict[str, float] = {}
    """What has happened since it began."""
    by_word: dict[str, dict[str, int]] = {}
    """The same, told apart by a word."""
    in_flight: dict[EngineRank, int] = {}
    """Requests on each engine."""
    load_counted_at: float | None = None
    """When the coordinator's last report of their load came, on the monotonic clock; of several servers the oldest."""

    def add(self, other: Numbers) -> None:
        """Add those of another server, which may count what we do not."""
        self.serving.add(other.serving)
        add_counts(self.gauges, other.gauges)
        add_counts(self.counters, other.counters)
        add_counts(self.in_flight, other.in_flight)
        counted = [at for at in (self.load_counted_at, other.load_counted_at) if at is not None]
        self.load_counted_at = min(counted, default=None)
        for name, counts in other.by_word.items():
            add_counts(self.by_word.setdefault(name, {}), counts)

    def remains(self) -> Numbers:
        """What is left of it when its server has gone: what has happened, not how things are."""
        return msgspec.structs.replace(self, gauges={}, in_flight={}, load_counted_at=None)


def add_counts(counts: dict[Key, Number], others: Mapping[Key, Number]) -> None:
    """Add up what two have counted, by key."""
    for key, number in others.items():
        counts[key] = counts[key] + number if key in counts else number


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
