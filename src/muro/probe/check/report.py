"""What an examination found: a row for each case, as a table or as JSON. Pure."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

WIDTH = 120


class Outcome(enum.Enum):
    """How a case went."""

    HOLDS = "holds"
    FAILS = "does not"
    NOT_ASKED = "not asked"


class Case(msgspec.Struct, frozen=True):
    """Something that must hold of a peer: its name, what, and in a line why."""

    name: str
    must: str
    why: str

    def __str__(self) -> str:
        return self.name


class Finding(msgspec.Struct, frozen=True):
    """How one case went, and what was seen."""

    case: Case
    outcome: Outcome
    seen: str


class Broken(Exception):
    """Something does not hold; the text says what was seen."""


class NotAsked(Exception):
    """A case makes no sense for this peer; the text says why."""


class Lost(Exception):
    """The peer says nothing any more; the text says since when."""


class Report(msgspec.Struct, frozen=True):
    """How all cases went. `peer` says who was examined."""

    peer: str
    findings: list[Finding]

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome is Outcome.FAILS]

    @property
    def passed(self) -> bool:
        """Whether everything that was asked holds, and something was asked."""
        return not self.failures and any(finding.outcome is Outcome.HOLDS for finding in self.findings)

    def __str__(self) -> str:
        names = max((len(finding.case.name) for finding in self.findings), default=0)
        lines = [self.peer, ""]
        for finding in self.findings:
            head = f"{finding.outcome.value:<9}  {finding.case.name:<{names}}  "
            lines += _hanging(head, finding.case.must)
            lines += _hanging(" " * len(head), f"why: {finding.case.why}")
            lines += _hanging(" " * len(head), f"seen: {finding.seen}")
        counts = {outcome: sum(f.outcome is outcome for f in self.findings) for outcome in Outcome}
        lines.append("")
        lines.append(
            f"{counts[Outcome.HOLDS]} hold, {counts[Outcome.FAILS]} do not"
            + "".join(f" ({', '.join(f.case.name for f in self.failures)})" for _ in self.failures[:1])
            + f", {counts[Outcome.NOT_ASKED]} were not asked"
        )
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """The same for programs."""
        rows = [
            {
                "case": finding.case.name,
                "must": finding.case.must,
                "why": finding.case.why,
                "outcome": finding.outcome.value,
                "seen": finding.seen,
            }
            for finding in self.findings
        ]
        return {"peer": self.peer, "passed": self.passed, "cases": rows}


class Findings:
    """Collects findings: a case may be judged several times, and then fails if it failed once."""

    def __init__(self) -> None:
        self._broken: dict[str, str] = {}
        self._held: dict[str, str] = {}
        self._not_asked: dict[str, str] = {}

    def holds(self, name: str, seen: str) -> None:
        self._held[name] = seen

    def fails(self, name: str, seen: str) -> None:
        """What was seen first is told."""
        self._broken.setdefault(name, seen)

    def not_asked(self, name: str, why: str) -> None:
        self._not_asked.setdefault(name, why)

    def failed(self, name: str) -> bool:
        return name in self._broken

    def rows(self, cases: Iterable[Case], otherwise: str) -> list[Finding]:
        """A row per case; those of which nothing is known were not asked, for the reason `otherwise`."""
        return [self._row(case, otherwise) for case in cases]

    def _row(self, case: Case, otherwise: str) -> Finding:
        table: tuple[tuple[Mapping[str, str], Outcome], ...] = (
            (self._broken, Outcome.FAILS),
            (self._held, Outcome.HOLDS),
            (self._not_asked, Outcome.NOT_ASKED),
        )
        for found, outcome in table:
            if case.name in found:
                return Finding(case, outcome, found[case.name])
        return Finding(case, Outcome.NOT_ASKED, otherwise)


def _hanging(head: str, text: str) -> list[str]:
    indent = " " * len(head)
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=indent) or [head]
