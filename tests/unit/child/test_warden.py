"""What needs no process; the rest is in tests/process/cases/test_fc_tree.py."""

import os

import pytest

from muro.child.warden import read_report, sweep


@pytest.mark.parametrize(
    ("text", "report"),
    [(b"12", (12, [])), (b"12 3 4", (12, [3, 4])), (b"", None), (b"junk", None)],
)
def test_reports(text: bytes, report: tuple[int, list[int]] | None) -> None:
    assert read_report(text) == report


def test_nothing_to_sweep() -> None:
    before = os.listdir("/proc/self/fd")
    assert sweep("no such token") == []
    assert os.listdir("/proc/self/fd") == before
