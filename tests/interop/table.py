"""The table of peers and cases: what a test says of itself, and what is printed at the end.

`@case("stop strings")` names the row that a test belongs to, and whom it is asked of; several tests may share a row,
which shows the worst of them. Where a peer cannot do something, the tests that need it leave it out, and
`@limit("stop strings", PEER, "why")` marks a test which shows that the peer does what its limit says.

A cell that no test fills is an error of the suite, so nothing is left out silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from tests.interop.peers import PEERS, Peer

Test = TypeVar("Test", bound=Callable[..., Any])

CASE = "interop_case"
"""Name of the marker: (row, peers, reason of the limit or "")."""


def case(row: str, *peers: Peer, but: Iterable[Peer] = ()) -> Callable[[Test], Test]:
    """A test of a row, for these peers (all, if none is named) but those."""
    left_out = {peer.name for peer in but}
    return _mark(row, [peer for peer in peers or PEERS if peer.name not in left_out], "")


def limit(row: str, *peers: Peer, reason: str) -> Callable[[Test], Test]:
    """A test which shows that these peers cannot do what the row asks for."""
    return _mark(row, peers, reason)


def _mark(row: str, peers: Iterable[Peer], reason: str) -> Callable[[Test], Test]:
    def decorate(test: Test) -> Test:
        marked: Test = getattr(pytest.mark, CASE)(row, tuple(peers), reason)(test)
        return marked

    return decorate


class Cell(msgspec.Struct):
    """What the tests of one row have shown about one peer."""

    passed: int = 0
    """Tests that ask for the whole of it."""
    failed: list[str] = []
    limits: list[str] = []

    @property
    def word(self) -> str:
        if self.failed:
            return "FAIL"
        if self.limits:
            return "limit"
        return "pass" if self.passed else "not run"


class Table:
    """Collects the outcomes of marked tests."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Cell]] = {}
        self._tests: dict[str, tuple[str, str, str]] = {}
        """By node id: row, peer, reason of the limit."""

    def expect(self, node: str, row: str, peer: str, reason: str) -> None:
        """A test will be run."""
        self._tests[node] = row, peer, reason
        self.rows.setdefault(row, {}).setdefault(peer, Cell())

    def heard(self, node: str, outcome: str, *, final: bool) -> None:
        """A phase of a test is over; `final` is the last phase that counts."""
        if node not in self._tests:
            return
        row, peer, reason = self._tests[node]
        cell = self.rows[row][peer]
        if outcome == "failed":
            cell.failed.append(node)
        elif outcome == "passed" and final and not reason:
            cell.passed += 1
        elif outcome == "passed" and final and reason not in cell.limits:
            cell.limits.append(reason)

    def gaps(self) -> list[str]:
        """Cells that no test will fill, in words."""
        return [f"{peer.name}, {row}" for row, cells in self.rows.items() for peer in PEERS if peer.name not in cells]

    @property
    def peers(self) -> list[str]:
        """Those that something was asked of, in their order."""
        asked = {peer for cells in self.rows.values() for peer in cells}
        return [peer.name for peer in PEERS if peer.name in asked]

    def lines(self) -> list[str]:
        """The table in Markdown, and the reasons of the limits below it."""
        peers = self.peers
        notes: list[str] = []
        lines = ["| case | " + " | ".join(peers) + " |", "| --- |" + " --- |" * len(peers)]
        for row, cells in self.rows.items():
            shown = [_shown(cells.get(peer), notes) for peer in peers]
            lines.append(f"| {row} | " + " | ".join(shown) + " |")
        if notes:
            lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
        return lines


def _shown(cell: Cell | None, notes: list[str]) -> str:
    if cell is None:
        return "not run"
    if cell.word != "limit":
        return cell.word
    for reason in cell.limits:
        if reason not in notes:
            notes.append(reason)
    numbers = ", ".join(str(notes.index(reason) + 1) for reason in cell.limits)
    return f"{'pass, ' if cell.passed else ''}limit {numbers}"


def marked(definition: pytest.Function | pytest.FunctionDefinition) -> Mapping[str, tuple[str, str]]:
    """By peer: the row of a test and the reason of its limit; empty if it belongs to no row."""
    found: dict[str, tuple[str, str]] = {}
    for mark in definition.iter_markers(CASE):
        row, peers, reason = mark.args
        found |= {peer.name: (row, reason) for peer in peers}
    return found
