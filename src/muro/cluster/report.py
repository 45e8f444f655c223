"""What a front-end and the host of a rank tell each other: values only, as MessagePack. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from muro.observe.log import Thresholds
from muro.wire.failure import FailureRecord
from muro.wire.progress import Progress


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the host shall start; see `launch.spawn.spawn`. It may hold keys: it is shown nowhere."""

    version: str
    """Of muro at the front-end."""
    target: str
    payload: dict[str, Any]
    title: list[str]
    env: dict[str, str]
    name: str
    generation: int
    thresholds: Thresholds

    def __repr__(self) -> str:
        return f"Order({self.name!r})"


class Hosted(msgspec.Struct, frozen=True, kw_only=True):
    """The process is there."""

    pid: int
    now_ns: int
    """The host's CLOCK_MONOTONIC."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How the process is, and what it logged since the last report."""

    status: int | None = None
    """Exit code, or minus the number of a signal; None while it lives."""
    progress: Progress = Progress()
    """In times of the host's clock."""
    stopped: bool = False
    """Whether it is stopped by a signal."""
    failure: FailureRecord | None = None
    log_tail: str = ""
    records: list[bytes] = []
    dropped: int = 0
    """Records that found no room here since the last report."""


def moved(progress: Progress, by_ns: int) -> Progress:
    """The same page with the times of another machine's clock; 0 stays "never"."""
    if not by_ns:
        return progress
    times = {
        name: max(1, at + by_ns)
        for name in ("phase_since_ns", "step_started_ns", "step_ended_ns", "activity_since_ns")
        if (at := getattr(progress, name))
    }
    return msgspec.structs.replace(progress, **times)
