"""The table of pairs and cases that is printed at the end.

A test is marked with the row that it belongs to; several may share one, which shows the worst of them. A test that is
skipped shows a limit of that pair: the reason is told below the table.
"""

import pytest


class Outcomes:
    """Collects what became of the marked tests; `columns` are the names of the pairs."""

    def __init__(self, columns: list[str]) -> None:
        self.rows: dict[str, dict[str, list[str]]] = {}
        self._columns = columns
        self._tests: dict[str, tuple[str, str]] = {}
        self._notes: list[str] = []

    def expect(self, node: str, row: str, column: str) -> None:
        """A test will be run."""
        self._tests[node] = row, column
        self.rows.setdefault(row, {}).setdefault(column, [])

    def heard(self, node: str, report: pytest.TestReport) -> None:
        """One phase of a test is over."""
        if node not in self._tests or (report.passed and report.when != "call"):
            return
        row, column = self._tests[node]
        self.rows[row][column].append(self._limit(report) if report.skipped else report.outcome)

    def lines(self) -> list[str]:
        """The table in Markdown, and the reasons below it."""
        head = ["| case | " + " | ".join(self._columns) + " |", "| --- |" + " --- |" * len(self._columns)]
        body = [
            f"| {row} | " + " | ".join(self._cell(row, column) for column in self._columns) + " |" for row in self.rows
        ]
        notes = [f"{number}. {note}" for number, note in enumerate(self._notes, 1)]
        return [*head, *body, *(["", *notes] if notes else [])]

    def _cell(self, row: str, column: str) -> str:
        found = self.rows[row].get(column, [])
        if "failed" in found:
            return "FAIL"
        limits = sorted({word for word in found if word != "passed"})
        return ", ".join((["pass"] if "passed" in found else []) + limits) or "not run"

    def _limit(self, report: pytest.TestReport) -> str:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        note = reason.removeprefix("Skipped: ")
        if note not in self._notes:
            self._notes.append(note)
        return f"limit {self._notes.index(note) + 1}"
