"""Two engines of ours behind one foreign front-end."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.asking import User
from tests.interop.pair import ECHO, Pair, paired
from tests.interop.peers import Peer
from tests.interop.table import case
from tests.support.deadline import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.model]


@pytest.fixture(scope="module")
def ranks(peer: Peer, model: Path) -> Iterator[Pair]:
    with paired(peer, model, *ECHO, engines=2) as pair:
        yield pair
        until(pair.is_idle, what="both engines have nothing left to do")
        assert [engine.poll() for engine in pair.engines] == [None, None]


@case("two ranks")
def test_both_ranks_work(ranks: Pair) -> None:
    """All streams begin before any goes on, so both engines have some of them at the same time."""
    gate = threading.Barrier(8)

    def stream(number: int) -> None:
        with ranks.http() as http, User(ranks.front.peer, http).stream(prompt=f"number {number}") as stream:
            stream.first()
            gate.wait(30)
            if number == 0:
                assert [engine.progress().running for engine in ranks.engines] == [4, 4]
            gate.wait(30)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(stream, range(8)))
    until(ranks.is_idle, within=5, what="all requests end in the engines")


@case("two ranks")
def test_answers_of_both_ranks(ranks: Pair) -> None:
    def ask(number: int) -> str:
        with ranks.http() as http:
            return User(ranks.front.peer, http).text(f"number {number}", max_tokens=50)

    with ThreadPoolExecutor(8) as pool:
        for number, text in enumerate(pool.map(ask, range(24))):
            assert text.startswith(f"number {number}number {number}n")
    assert all(engine.progress().tokens_out > 50 for engine in ranks.engines)
