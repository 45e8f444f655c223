"""Files under 400 lines, functions under 60, and no file named after nothing in particular."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for room in ("src", "tests", "scripts", "fuzz") for path in (ROOT / room).rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 400, 60
EMPTY_NAMES = {"utils", "util", "common", "helpers", "manager", "base", "misc"}


def oversized(source: str) -> list[str]:
    """The file and the functions in `source` that are too long, in words."""
    lines = source.count("\n")
    found = [f"{lines} lines; a file has fewer than {MAX_FILE}"] if lines >= MAX_FILE else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length >= MAX_FUNCTION:
                found.append(
                    f"{node.name}, line {node.lineno}: {length} lines; a function has fewer than {MAX_FUNCTION}"
                )
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_and_names(path: Path) -> None:
    assert not oversized(path.read_text())
    assert not {path.stem, path.parent.name} & EMPTY_NAMES, "name the file after what it does"


def test_the_check_sees_long_files_and_functions() -> None:
    long_function = "def f():\n" + "    pass\n" * (MAX_FUNCTION - 1)
    assert oversized(long_function) and not oversized(long_function.replace("    pass\n", "", 1))
    assert oversized("x = 1\n" * MAX_FILE) and not oversized("x = 1\n" * (MAX_FILE - 1))
