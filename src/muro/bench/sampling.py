"""Samples and what is said of them; taking turns, so that a machine's moods fall on all probes alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Turn = Callable[[], None]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` per cent of all samples do not exceed. Raises ValueError."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(samples: Sequence[float]) -> float:
    """The 50th percentile."""
    return percentile(samples, 50)


def spread_us(seconds: Sequence[float]) -> dict[str, float]:
    """`{"p50": ..., "p99": ...}` in microseconds of samples in seconds."""
    return {"p50": round(percentile(seconds, 50) * 1e6, 1), "p99": round(percentile(seconds, 99) * 1e6, 1)}


def spread(samples: Sequence[float], digits: int) -> dict[str, float]:
    """`{"p50": ..., "p99": ..., "max": ...}` of samples, in their own unit."""
    found = {"p50": median(samples), "p99": percentile(samples, 99), "max": max(samples)}
    return {name: round(value, digits) for name, value in found.items()}


def take_turns(turns: Mapping[str, Turn], rounds: int, progress: Callable[[str], None]) -> None:
    """Let each probe have its turn, `rounds` times over; `progress` hears who is at work."""
    for number in range(rounds):
        for name, turn in turns.items():
            progress(f"{name} {number + 1}/{rounds}")
            turn()
