"""What tests with real foreign peers share: a front-end of each kind, our engine behind it, the table at the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from muro.config import home
from muro.models.pull import pull
from tests.interop.asking import User
from tests.interop.pair import ECHO, Pair, paired
from tests.interop.peers import PEERS, Peer
from tests.interop.table import CASE, Table, marked
from tests.support.deadline import until

ANYTHING = {"type": "json_schema", "json_schema": {"name": "anything", "schema": {"type": "boolean"}}}
_table = Table()
"""Of this session; the hook that hears of outcomes is given nothing that it could be kept in."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{CASE}(row, peers, reason): a row of the table of peers and cases")
    config.addinivalue_line("markers", "smoke: one of the few that `make smoke-interop` runs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `peer` is run for each of those that its row is asked of."""
    if "peer" in metafunc.fixturenames:
        asked = marked(metafunc.definition) or {peer.name: None for peer in PEERS}
        peers = [peer for peer in PEERS if peer.name in asked]
        metafunc.parametrize("peer", peers, ids=[peer.name for peer in peers], scope="module")


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        if isinstance(item, pytest.Function) and (rows := marked(item)):
            peer = item.callspec.params["peer"].name
            _table.expect(item.nodeid, rows[peer][0], peer, rows[peer][1])
    option = session.config.option
    chosen = option.keyword or option.markexpr or any("::" in argument for argument in session.config.args)
    if not chosen and (gaps := _table.gaps()):
        raise pytest.UsageError("nothing is asked of these: " + "; ".join(gaps))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _table.heard(report.nodeid, report.outcome, final=report.when == "call")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _table.rows and not config.option.collectonly:
        terminalreporter.section("peers and cases")
        for line in _table.lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo model; fetched the first time and kept."""
    return pull("demo", home())


@pytest.fixture(scope="module")
def modelled(peer: Peer, model: Path) -> Iterator[Pair]:
    """The demo model behind a peer; for tests that leave both alive."""
    with paired(peer, model, str(model)) as pair:
        with pair.http() as http:
            # The engine keeps the process that its first grammar has started.
            User(peer, http).chat("Say yes.", max_tokens=8, response_format=ANYTHING)
        yield from _left_alive(pair)


@pytest.fixture(scope="module")
def echoing(peer: Peer, model: Path) -> Iterator[Pair]:
    """An engine that repeats its prompt, so that every answer is known; for tests that leave both alive."""
    with paired(peer, model, *ECHO) as pair:
        yield from _left_alive(pair)


@pytest.fixture
def doomed(peer: Peer, model: Path) -> Iterator[Pair]:
    """The same for one test, which ends one of them."""
    with paired(peer, model, *ECHO) as pair:
        yield pair


def _left_alive(pair: Pair) -> Iterator[Pair]:
    yield pair
    until(pair.is_idle, what="the engine has nothing left to do")
    assert pair.engine.poll() is None and pair.front.serves()
