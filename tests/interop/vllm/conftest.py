"""What the tests with vLLM in Python share: its environment, a model directory that its engine reads, and the table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from muro.config import home
from muro.models.pull import pull
from tests.interop.vllm.outcomes import Outcomes
from tests.interop.vllm.worlds import KINDS, PLACE, Kind, World, world

_outcomes = Outcomes([kind.name for kind in KINDS])
"""Of this session; the hook that hears of outcomes is given nothing that it could be kept in."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(name): the row of the table that a test belongs to")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS, ids=[kind.slug for kind in KINDS], scope="module")


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        mark = item.get_closest_marker("row")
        if mark is not None and isinstance(item, pytest.Function):
            _outcomes.expect(item.nodeid, mark.args[0], item.callspec.params["kind"].name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _outcomes.heard(report.nodeid, report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _outcomes.rows and not config.option.collectonly:
        terminalreporter.section("vllm 0.25.1 in Python")
        for line in _outcomes.lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo model, with weights that vLLM reads."""
    if not (PLACE / "bin" / "vllm").exists():
        pytest.fail(f"there is no vLLM in {PLACE}: make interop-vllm installs it")
    return pull("demo", home(), with_weights=True)


@pytest.fixture(scope="module")
def served(kind: Kind, model: Path) -> Iterator[World]:
    """For tests that leave both halves alive."""
    with world(kind, model) as found:
        yield found
        if found.ended:
            return
        assert found.status() == 200
        assert found.front.poll() is None and (found.engine is None or found.engine.poll() is None)


@pytest.fixture
def doomed(kind: Kind, model: Path) -> Iterator[World]:
    """For a test that ends one of them."""
    with world(kind, model) as found:
        yield found
