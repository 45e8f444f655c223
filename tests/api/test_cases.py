"""The table of failure cases names tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"`([a-z_/0-9]+\.py)`", (ROOT / "docs/cases.md").read_text())))


def test_the_table_names_tests() -> None:
    assert len(NAMED) > 15


@pytest.mark.parametrize("path", NAMED)
def test_a_named_test_exists(path: str) -> None:
    assert (ROOT / "tests" / path).is_file()
