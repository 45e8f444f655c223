"""What the source never does: run code that came as data, and read the environment behind one's back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FILES = sorted(SOURCE.rglob("*.py"))
PICKLES = {"pickle", "_pickle", "marshal", "shelve", "cloudpickle", "dill", "copyreg"}
RUNNERS = {"eval", "exec", "compile", "__import__"}
ENVIRONMENT = {"environ", "environb", "getenv", "putenv"}
READS_ENVIRONMENT = {"muro/config.py", "muro/child/warden.py"}
"""The warden reads no setting: it marks its own environment, so that descendants can be told by it."""


def words(source: str) -> Iterator[tuple[str, int]]:
    """Every imported module, called plain name and attribute of ``os`` in `source`, with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((name.name.partition(".")[0], node.lineno) for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module.partition(".")[0], node.lineno
                if module == "os":
                    yield from ((name.name, node.lineno) for name in names)
            case ast.Call(func=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id="os"), attr=name):
                yield name, node.lineno


def forbidden(source: str, names: set[str]) -> list[str]:
    return among(list(words(source)), names)


def among(found: list[tuple[str, int]], names: set[str]) -> list[str]:
    return [f"{name}, line {line}" for name, line in found if name in names]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_source(path: Path) -> None:
    found = list(words(path.read_text()))
    assert not among(found, PICKLES), "nothing is pickled"
    assert not among(found, RUNNERS), "data is never run"
    if str(path.relative_to(SOURCE)) not in READS_ENVIRONMENT:
        assert not among(found, ENVIRONMENT), "settings come from muro.config"


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from marshal import loads", "eval('1')", "import os; os.environ['A']", "from os import getenv"],
)
def test_the_check_sees(line: str) -> None:
    assert forbidden(line, PICKLES | RUNNERS | ENVIRONMENT)


def test_the_check_does_not_mistake_methods_and_words() -> None:
    assert not forbidden("re.compile('a'); session.exec(); x = 'pickle'", PICKLES | RUNNERS | ENVIRONMENT)
