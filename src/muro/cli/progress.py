"""The start of engines on standard error: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress

    from muro.launch.startup import StartupProgress

_STEP = 25.0
"""Per cent between two plain lines about the same phase."""
_AGAIN_AFTER = 4.0
"""Seconds after which a plain line is repeated although nothing has changed."""


class StartupShow:
    """Call it with the news of a start; use it as a context manager. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars: Progress | None = None
        self._tasks: dict[int, Any] = {}
        self._said: dict[int, tuple[str, float, float]] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[phase]}"))
            self._bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars away; may be called twice."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
                self._bars = None

    def __call__(self, news: StartupProgress) -> None:
        with self._lock:
            phase = news.sight.phase or f"waiting for it: {news.sight.waiting_for}"
            if self._bars is None:
                self._line(news.rank, news.name, phase, news.sight.percent, news.waited)
                return
            if news.rank not in self._tasks:
                self._tasks[news.rank] = self._bars.add_task(news.name, total=100.0, phase=phase)
            self._bars.update(self._tasks[news.rank], completed=news.sight.percent, phase=phase)

    def _line(self, rank: int, name: str, phase: str, percent: float, waited: float) -> None:
        if (before := self._said.get(rank)) is not None:
            said, at, when = before
            if said == phase and percent < at + _STEP and waited < when + _AGAIN_AFTER:
                return
        self._said[rank] = (phase, percent, waited)
        shown = f", {percent:.0f} %" if percent else ""
        print(f"{name}: {phase}{shown} ({waited:.1f} s)", file=sys.stderr, flush=True)
