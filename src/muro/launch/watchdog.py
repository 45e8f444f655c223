"""Tell engines that are stuck from those that are idle, busy or slow. Pure: time is an argument.

The rule: an engine that owes something and does nothing towards it for `limit` seconds, as its parent counts them,
is stuck. What it may owe stands in a table, a row each: to end a step, to take what waits for it, to put something
out while requests run. Each row has a mark that moves with whatever counts as progress for it. A row's account grows
only while the row owes and its mark stands still; it is kept apart for each phase, so a phase has the whole limit for
itself, and one that comes and goes is no excuse.

Seconds come from `OwnTime`: those in which the parent was looking. So neither a machine that slept nor a parent that
was stopped makes an engine look stuck.

An engine without a progress page (it was started elsewhere, or is not ours) is judged by what is heard of it; see
`Silence`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from muro.wire.progress import PAUSED, STARTING, STOPPING, Progress

LONGEST_TICK = 2.0
"""Lengths of a tick that one tick counts for at most, however late it comes."""


class Verdict(msgspec.Struct, frozen=True):
    """An engine is stuck."""

    what: str
    """Which row of the table says so; "silence" for an engine without a page."""
    seconds: float
    """How long nothing moved, as the parent counts."""
    words: str
    """What was seen: "step 1234 has run for 61 s"."""


class OwnTime:
    """Seconds during which the parent was looking.

    Args:
        tick: seconds between two looks, as intended.
        now: the present time, on the clock of all other calls.
    """

    def __init__(self, tick: float, now: float) -> None:
        self._longest = tick * LONGEST_TICK
        self._last = now
        self._counted = 0.0

    def tick(self, now: float) -> float:
        """Another look; gives the seconds counted so far."""
        self._counted += min(max(0.0, now - self._last), self._longest)
        self._last = now
        return self._counted


class Sight(msgspec.Struct, frozen=True):
    """All that is seen of an engine in one look."""

    progress: Progress
    stopped: bool = False
    """The operating system says that the process is stopped (SIGSTOP)."""
    sent: int = 0
    """Messages that were sent to this engine since it is connected; 0 if that is not counted."""


class _Row(msgspec.Struct, frozen=True):
    """One thing that an engine may owe."""

    what: str
    owes: Callable[[Sight], bool]
    mark: Callable[[Sight], object]
    """What moves with progress; the account starts anew with each change."""
    words: Callable[[Sight, float], str]
    excused: frozenset[str] = frozenset()
    """Phases in which it is not owed."""


def _handling(sight: Sight, seconds: float) -> str:
    progress = sight.progress
    if progress.activity and progress.activity_since_ns >= progress.step_ended_ns:
        return f"handling {progress.activity!r} has taken {seconds:.0f} s"
    return f"the loop has not moved for {seconds:.0f} s since step {progress.steps_ended} ended"


_PAUSED = frozenset({PAUSED})

ROWS: tuple[_Row, ...] = (
    _Row(
        "stopped",
        owes=lambda s: s.stopped,
        mark=lambda s: s.stopped,
        words=lambda s, seconds: f"the process has been stopped (SIGSTOP) for {seconds:.0f} s",
    ),
    _Row(
        "step",
        owes=lambda s: s.progress.stepping,
        mark=lambda s: s.progress.steps_started,
        words=lambda s, seconds: f"step {s.progress.steps_started} has run for {seconds:.0f} s",
    ),
    _Row(
        "event",
        owes=lambda s: not s.progress.idle and not s.progress.stepping,
        mark=lambda s: (s.progress.steps_ended, s.progress.activity_since_ns),
        words=_handling,
    ),
    _Row(
        "message",
        owes=lambda s: s.progress.messages_begun > s.progress.messages_done,
        mark=lambda s: s.progress.messages_begun,
        words=lambda s, seconds: f"the input thread has worked on one message for {seconds:.0f} s",
    ),
    _Row(
        "queue",
        owes=lambda s: s.progress.events_queued > s.progress.events_taken,
        mark=lambda s: s.progress.events_taken,
        words=lambda s, seconds: (
            f"{s.progress.events_queued - s.progress.events_taken} messages wait and the loop has taken none "
            f"for {seconds:.0f} s"
        ),
    ),
    _Row(
        "yield",
        owes=lambda s: s.progress.running > 0,
        mark=lambda s: s.progress.yielded,
        words=lambda s, seconds: (
            f"{s.progress.running} requests run, but nothing has come out of them for {seconds:.0f} s "
            + ("and the engine says that it has no work" if s.progress.idle else f"(step {s.progress.steps_ended})")
        ),
        excused=_PAUSED,
    ),
    _Row(
        "door",
        owes=lambda s: s.sent > s.progress.messages_begun and not s.progress.ignored_clients,
        mark=lambda s: s.progress.messages_begun,
        words=lambda s, seconds: (
            f"{s.sent - s.progress.messages_begun} messages were sent to it, and it has read none for {seconds:.0f} s"
        ),
    ),
)
"""What an engine that has started may owe. The first row over the limit gives the verdict."""

_STOPPING = _Row(
    "stopping",
    owes=lambda s: True,
    mark=lambda s: s.progress.phase_since_ns,
    words=lambda s, seconds: f"it has been about to end for {seconds:.0f} s",
)


class _Account:
    """Seconds that one row has owed without a move, by phase."""

    def __init__(self, row: _Row) -> None:
        self._row = row
        self._mark: object = None
        self._owed = False
        self._by_phase: dict[str, float] = {}

    def look(self, sight: Sight, seconds: float) -> float:
        """`seconds` have passed since the last look; gives those that count against the present phase."""
        row, phase = self._row, sight.progress.phase_word
        if phase in row.excused or not row.owes(sight):
            self.forget()
            return 0.0
        mark = row.mark(sight)
        if not self._owed or mark != self._mark:
            self._owed, self._mark, self._by_phase = True, mark, {}
        else:
            self._by_phase[phase] = self._by_phase.get(phase, 0.0) + seconds
        return self._by_phase.get(phase, 0.0)

    def forget(self) -> None:
        self._owed, self._by_phase = False, {}


class Watchdog:
    """Watches one engine of one generation.

    Args:
        limit: seconds; None or 0 never gives a verdict.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit or None
        self._accounts = [(row, _Account(row)) for row in ROWS]
        self._stopping = [(_STOPPING, _Account(_STOPPING))]
        self._last: float | None = None

    def look(self, progress: Progress, now: float, *, stopped: bool = False, sent: int = 0) -> Verdict | None:
        """Take in what is seen at `now`, in seconds of `OwnTime`; gives a verdict as long as it stands.

        `stopped` and `sent` are those of `Sight`. A start is not judged here: see `launch.patience`.
        """
        seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        if self._limit is None:
            return None
        sight = Sight(progress, stopped, sent)
        phase = progress.phase_word
        judged = [] if phase in STARTING else self._stopping if phase == STOPPING else self._accounts
        for row, account in (*self._accounts, *self._stopping):
            if (row, account) not in judged:
                account.forget()
        found = [(row, account.look(sight, seconds)) for row, account in judged]
        for row, owed in found:
            if owed >= self._limit:
                also = "; the process is stopped (SIGSTOP)" if stopped and row.what != "stopped" else ""
                return Verdict(row.what, owed, row.words(sight, owed) + also)
        return None


class Silence:
    """Watches one engine that has no progress page, by what is heard of it.

    An engine that works on requests of ours and says nothing for the whole limit, while we were listening, is stuck. It
    may as well serve others meanwhile: that cannot be seen from here.

    Args:
        limit: seconds; None or 0 never gives a verdict.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit or None
        self._heard: int | None = None
        self._silent = 0.0
        self._last: float | None = None

    def look(self, heard: int, in_flight: int, now: float, *, listening: bool = True) -> Verdict | None:
        """Take in what is known at `now`, in seconds of `OwnTime`; gives a verdict as long as it stands.

        Args:
            heard: messages that came from the engine so far.
            in_flight: requests and calls that it has not answered.
            now: see above.
            listening: whether what it sends would have been heard since the last look.
        """
        seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        if not in_flight:
            self._heard, self._silent = None, 0.0
        elif heard != self._heard:
            self._heard, self._silent = heard, 0.0
        elif listening:
            self._silent += seconds
        if self._limit is None or self._silent < self._limit:
            return None
        words = f"nothing was heard of it for {self._silent:.0f} s, with {in_flight} requests and calls in flight"
        return Verdict("silence", self._silent, words)
