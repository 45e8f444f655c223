"""The table of failure cases names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/cases.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)))


def test_every_case_has_a_test() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| FC-")]
    assert len(rows) > 25
    assert all("::" in row for row in rows)


def test_nothing_is_named_that_is_not_checked() -> None:
    assert TABLE.count(".py") == len(re.findall(r"`[\w/]+\.py::\w+`", TABLE))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    assert name in {node.name for node in tree.body if isinstance(node, kinds)}
