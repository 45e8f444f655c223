"""What a run has shown, as values and as a table. Pure."""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.chaos.faults import LEFT_OUT
from tests.chaos.world import Growing

ALLOWED = {"rss_mib": 24.0, "fds": 8, "threads": 2, "shm": 1, "sockets": 2, "processes": 0}
"""By how much a server may be larger at the last quiet moment than at the first."""


class Result(msgspec.Struct, kw_only=True):
    """One run."""

    requests: int = 0
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    left_out: dict[str, str] = msgspec.field(default_factory=lambda: dict(LEFT_OUT))
    deaths: int = 0
    recoveries: dict[str, list[float]] = {}
    """By fault: seconds from it to the next generation that serves."""
    violations: list[str] = []
    sizes: list[Growing] = []
    """At quiet moments, the first one early and the last one at the end."""
    exit_code: int | None = None
    log: str = ""

    def growth_problems(self) -> list[str]:
        """What has grown by more than is allowed, in words."""
        if len(self.sizes) < 2:
            return ["no two quiet moments to compare"]
        first, *_, last = self.sizes
        grown = {name: getattr(last, name) - getattr(first, name) for name in ALLOWED}
        return [
            f"{name} grew by {by:.6g}, from {getattr(first, name):.6g}; {ALLOWED[name]:g} is allowed"
            for name, by in grown.items()
            if by > ALLOWED[name]
        ]


def progress(result: Result, requests: int, seconds: float, of: float) -> str:
    """How far a run is, in one line."""
    return (
        f"{seconds:5.0f} of {of:.0f} s: {requests} requests, {result.faults.total()} faults, {result.deaths} deaths, "
        f"{len(result.violations)} violations"
    )


def summary(result: Result) -> str:
    """A run in a few lines."""
    lines = [f"{'requests':28} {result.requests}"]
    lines += [f"  {name:26} {count}" for name, count in sorted(result.outcomes.items())]
    lines.append(f"{'faults':28} {result.faults.total()}")
    for name, count in sorted(result.faults.items()):
        times = sorted(result.recoveries.get(name, ()))
        shown = (
            f"serving again after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s (most)" if times else ""
        )
        lines.append(f"  {name:26} {count:<5} {shown}".rstrip())
    lines += [f"  {name:26} left out: {why}" for name, why in result.left_out.items()]
    lines.append(f"{'deaths':28} {result.deaths}")
    if result.sizes:
        lines.append("the server at quiet moments, early to late")
        for name in result.sizes[0].__struct_fields__:
            lines.append(f"  {name:26} {' '.join(f'{getattr(size, name):6.4g}' for size in result.sizes)}")
    lines.append(f"{'exit code of the server':28} {result.exit_code}")
    lines.append(f"{'violations':28} {len(result.violations)}")
    return "\n".join(lines)
