"""The built-in agreement of lockstep ranks, over real sockets; each rank votes on a thread of its own."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from muro.config import LockstepConfig
from muro.engine.interface import Collective
from muro.errors import ConfigError, EngineDeadError
from muro.ids import EngineRank
from muro.process import collective
from muro.process.collective import RankCollective
from muro.transport.sockets import Socket, close, connect_dealer, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import identity_of
from muro.wire.lockstep import Ballot, decode_ballot, encode_ballot
from tests.support.deadline import until

LONG = 20.0


class Group:
    """Some ranks."""

    def __init__(self, size: int, address: str, token: str = "") -> None:
        self.config = LockstepConfig(size=size, address=address, token=token)
        self.stops = [Wakeup().open() for _ in range(size)]
        self.called = [threading.Semaphore(0) for _ in range(size)]
        self.ranks: list[RankCollective] = [self.make(rank) for rank in range(size)]
        self.pool = ThreadPoolExecutor(size)

    def make(self, rank: int) -> RankCollective:
        return RankCollective(
            self.config, EngineRank(rank), on_awaited=lambda number: self.called[rank].release(), stop=self.stops[rank]
        )

    def open(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.ranks)):
            self.ranks[rank].open()

    def vote(self, rank: int, mine: bool, timeout: float = LONG) -> Future[bool]:
        return self.pool.submit(self.ranks[rank].any_rank, mine, timeout)

    def close(self) -> None:
        for stop in self.stops:
            stop.set()
        for rank in self.ranks:
            rank.close()
        self.pool.shutdown()
        for stop in self.stops:
            stop.close()


@contextmanager
def group(size: int, token: str = "") -> Iterator[Group]:
    with tempfile.TemporaryDirectory(prefix="gr-", ignore_cleanup_errors=True) as directory:
        made = Group(size, f"ipc://{directory}/g", token)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("size", [2, 3, 8])
def test_all_learn_whether_it_is_true_anywhere(size: int) -> None:
    with group(size) as ranks:
        ranks.open()
        for number in range(4 * size):
            who = number % (2 * size)  # every second time nobody
            votes = [ranks.vote(rank, rank == who) for rank in range(size)]
            assert [vote.result() for vote in votes] == [who < size] * size
        assert isinstance(ranks.ranks[0], Collective)


def test_nobody_goes_on_before_all_have_voted() -> None:
    with group(3) as ranks:
        ranks.open()
        early = [ranks.vote(0, True), ranks.vote(2, False)]
        assert ranks.called[1].acquire(timeout=LONG)
        assert not any(vote.done() for vote in early)
        assert ranks.vote(1, False).result() is True
        assert all(vote.result() for vote in early)


def test_a_rank_that_sleeps_is_called_once_for_each_agreement() -> None:
    with group(3) as ranks:
        ranks.open()
        for _ in range(3):
            early = [ranks.vote(0, False), ranks.vote(1, False)]
            assert ranks.called[2].acquire(timeout=LONG)
            assert ranks.vote(2, False).result() is False
            assert [vote.result() for vote in early] == [False, False]
        assert not ranks.called[2].acquire(blocking=False)


def test_who_comes_late_hears_all_votes() -> None:
    with group(3) as ranks:
        ranks.open(1)
        votes = [ranks.vote(1, True)]
        ranks.open(0)
        assert ranks.called[0].acquire(timeout=LONG)
        votes.append(ranks.vote(0, False))
        ranks.open(2)
        assert ranks.called[2].acquire(timeout=LONG), "it is told that it is waited for"
        votes.append(ranks.vote(2, False))
        assert [vote.result() for vote in votes] == [True, True, True]


def test_votes_that_got_lost_are_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "REPEAT", 0.05)
    with group(2) as ranks:
        lost = iter([True, True])
        monkeypatch.setattr(
            collective, "send_nowait", lambda socket, frames: next(lost, False) or send_nowait(socket, frames)
        )
        ranks.open()
        votes = [ranks.vote(0, False), ranks.vote(1, True)]
        assert [vote.result() for vote in votes] == [True, True]


def test_a_vote_that_got_lost_although_its_rank_has_heard_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "REPEAT", 0.05)
    lost: list[Ballot] = []

    def send(socket: Socket, frames: list[bytes]) -> bool:
        ballot = decode_ballot(frames[-1])
        if ballot.kind == "vote" and ballot.rank == 1 and not lost:
            lost.append(ballot)
            return True
        return send_nowait(socket, frames)

    monkeypatch.setattr(collective, "send_nowait", send)
    with group(2) as ranks:
        ranks.open()
        assert [vote.result() for vote in [ranks.vote(1, True), ranks.vote(0, False)]] == [True, True]
        assert lost


@pytest.mark.parametrize(
    ("who", "missing"), [(0, "lockstep rank 2 did not"), (1, "lockstep rank 2 did not")], ids=["rank 0", "rank 1"]
)
def test_the_missing_rank_is_named(who: int, missing: str) -> None:
    with group(3) as ranks:
        ranks.open()
        other = ranks.vote(1 - who, False)
        with pytest.raises(EngineDeadError, match=f"{missing} take part in agreement 0 within 0.3 s") as caught:
            ranks.vote(who, True, 0.3).result()
        assert caught.value.rank == who
        assert not other.done()
        ranks.vote(2, False).result()
        assert other.result() is True


def test_several_are_named() -> None:
    with group(4) as ranks:
        ranks.open()
        with pytest.raises(EngineDeadError, match="lockstep ranks 1, 2, 3 did not take part"):
            ranks.vote(0, True, 0.1).result()


def test_without_rank_0_nobody_hears_anybody() -> None:
    with group(3) as ranks:
        ranks.open(1, 2)
        with pytest.raises(EngineDeadError, match="rank 0, through which the others are heard"):
            ranks.vote(1, True, 0.1).result()


@pytest.mark.parametrize("leaver", [0, 2])
def test_who_stops_lets_the_others_know(leaver: int) -> None:
    with group(3) as ranks:
        ranks.open()
        assert [vote.result() for vote in [ranks.vote(rank, False) for rank in range(3)]] == [False] * 3, (
            "they are there"
        )
        waiting = [ranks.vote(rank, True) for rank in range(3) if rank != leaver]
        ranks.stops[1].set()
        ranks.ranks[leaver].close()
        with pytest.raises(EngineDeadError, match=f"lockstep rank {leaver} left the group"):
            waiting[0 if leaver else 1].result()
        assert waiting[1 if leaver else 0].result() is True, "it is to stop, too, and finishes alone what it has"
        assert ranks.vote(1, False).result() is False


def test_who_is_to_stop_does_not_wait_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "STOP_PATIENCE", 0.1)
    with group(2) as ranks:
        ranks.open(0)
        vote = ranks.vote(0, True)
        ranks.stops[0].set()
        assert vote.result() is True
        assert ranks.vote(0, False).result() is False


def test_junk_and_other_groups_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with group(2, token="now") as ranks:
        ranks.open(0)
        junk: list[Callable[[], list[bytes]]] = [
            lambda: [b""],
            lambda: [b"\xc1" * 50],
            lambda: [encode_ballot(Ballot("then", "vote", 1, 0, True))],
            lambda: [encode_ballot(Ballot("now", "vote", 0, 0, True))],
            lambda: [encode_ballot(Ballot("now", "vote", -7, 0, True))],
            lambda: [encode_ballot(Ballot("now", "vote", 1, 9, True))],
            lambda: [encode_ballot(Ballot("now", "hello", 5))],
            lambda: [encode_ballot(Ballot("now", "vote", 1, 0, True)), b"more"],
        ]
        for number, make in enumerate(junk):
            stranger = connect_dealer(ranks.config.address, identity_of(1), linger_ms=1000)
            send_nowait(stranger, make())
            close(stranger)
            until(lambda number=number: ranks.ranks[0].dropped == number + 1)
        ranks.open(1)
        assert [vote.result() for vote in [ranks.vote(0, False), ranks.vote(1, False)]] == [False, False]
    assert len([record for record in caplog.records if "dropped" in record.message]) == 1


def test_an_address_of_other_machines_needs_to_be_asked_for() -> None:
    ranks = RankCollective(
        LockstepConfig(size=2, address="tcp://192.0.2.1:29600"),
        EngineRank(1),
        on_awaited=lambda number: None,
        stop=Wakeup(),
    )
    with pytest.raises(ConfigError, match="insecure"):
        ranks.open()
    ranks.close()
