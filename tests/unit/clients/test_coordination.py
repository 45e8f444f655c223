"""A client's ear for the coordinator and its mouth: what is heard, what junk does, what is said and when."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from muro.clients.coordination import Coordination
from muro.ids import EngineRank
from muro.transport.pump import Pump
from muro.transport.sockets import bind_xpub, bound_address, close, receive_nowait, send_nowait
from muro.wire.coordination import FirstRequest, Publication, encode
from muro.wire.frames import SUBSCRIBE
from tests.support.coordinating import Coordinated, coordinated
from tests.support.deadline import until

PATIENCE_MS = 20_000


class Listener:
    """A client's loop, in small."""

    def __init__(self, address: str, *, lockstep: bool = True) -> None:
        self.coordination = Coordination(address, lockstep=lockstep).open()
        self._pump = Pump()
        self._pump.add(self.coordination.ear, lambda: None)

    def looks(self) -> bool:
        """Look at the socket, without waiting; nothing was said."""
        return self._pump.poll(0) > 0

    def news(self) -> Publication | None:
        """What has come when something has."""
        assert self._pump.poll(PATIENCE_MS), "nothing comes"
        if (news := self.coordination.read()) is not None:
            self.coordination.heard(news)
        return news

    def news_until(self, condition: Callable[[Publication], bool]) -> Publication:
        while True:
            news = self.news()
            if news is not None and condition(news):
                return news


@pytest.fixture
def lockstep() -> Iterator[tuple[Coordinated, Listener]]:
    with coordinated(2, lockstep=True) as one:
        listener = Listener(one.config.stats_address)
        yield one, listener
        listener.coordination.close()
        listener.coordination.close()


class Station:
    """A coordinator that says whatever it likes."""

    def __init__(self, address: str) -> None:
        self.socket = bind_xpub(address)
        self._pump = Pump()
        self._pump.add(self.socket, lambda: None)

    def has_news(self) -> bool:
        return self._pump.poll(0) > 0

    def next(self) -> list[bytes]:
        assert self._pump.poll(PATIENCE_MS), "nothing comes"
        return [bytes(frame) for frame in receive_nowait(self.socket) or ()]

    def says(self, *frames: bytes) -> None:
        send_nowait(self.socket, frames)


@pytest.fixture
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    one = Station(f"ipc://{tmp_path_factory.mktemp('s')}/s")
    yield one
    close(one.socket, 0)


def test_load_and_waves_are_heard(lockstep: tuple[Coordinated, Listener]) -> None:
    one, listener = lockstep
    first, _ = one.engines(2)
    assert listener.coordination.counted_at is None
    assert listener.news() == Publication([[0, 0, 0.0]] * 2, 0, False)
    assert listener.coordination.counted_at is not None
    first.reports(2, 1)
    listener.news_until(lambda news: news.counts == [[2, 1, 0.0], [0, 0, 0.0]])
    first.says(start_wave=7)
    listener.news_until(lambda news: news.running)
    assert listener.coordination.wave == 7
    first.says(wave_complete=7)
    listener.news_until(lambda news: not news.running)
    assert listener.coordination.wave == 8


def test_the_coordinator_is_told_of_the_first_request_of_a_pause(lockstep: tuple[Coordinated, Listener]) -> None:
    one, listener = lockstep
    first, second = one.engines(2)
    assert listener.news() is not None
    for _ in range(3):
        listener.coordination.request_sent(EngineRank(1))
    assert first.next() == second.next() == [b"\x02", msgspec.msgpack.encode([0, 1])]
    listener.news_until(lambda news: news.running)
    first.says(wave_complete=0)
    listener.news_until(lambda news: not news.running)
    listener.coordination.request_sent(EngineRank(0))
    assert first.next() == second.next() == [b"\x02", msgspec.msgpack.encode([1, 0])]
    assert first.all() == []


def test_independent_ranks_have_no_waves() -> None:
    with coordinated(2) as one:
        listener = Listener(one.config.stats_address, lockstep=False)
        assert listener.news() == Publication([[0, 0, 0.0]] * 2, 0, False)
        listener.coordination.request_sent(EngineRank(1))
        assert listener.coordination.wave == 0
        listener.coordination.close()


def test_of_what_has_piled_up_the_newest_of_each_kind_counts(station: Station) -> None:
    listener = Listener(bound_address(station.socket))
    assert station.next() == [SUBSCRIBE]
    for news in (
        Publication([[1, 1]], 0, False),
        Publication([[2, 2]], 0, True),
        Publication(None, 1, False),
    ):
        station.says(encode(news))
    heard = listener.news()
    while heard is not None and heard.wave == 0:
        heard = _later(heard, listener.news())
    assert heard == Publication([[2, 2]], 1, False)
    listener.coordination.close()


def _later(old: Publication, new: Publication | None) -> Publication | None:
    """As a client would, that asks twice."""
    return new if new is None or new.counts is not None else Publication(old.counts, new.wave, new.running)


@pytest.mark.cases
def test_fc08_junk_from_a_coordinator_changes_nothing(station: Station) -> None:
    listener = Listener(bound_address(station.socket))
    assert station.next() == [SUBSCRIBE]
    pack = msgspec.msgpack.encode
    junk: list[list[bytes]] = [
        [b""],
        [b"READY"],
        [b"\xc1"],
        [pack([])],
        [pack([None, -1, True])],
        [pack([None, 1 << 62, True])],
        [pack([[[1]], 1, True])],
        [pack([[[1, -1]], 1, True])],
        [pack([[[float("nan"), 1]], 1, True])],
        [pack([[[1, 1, "much"]], 1, True])],
        [pack([None, 1, True]), b"more"],
        [b"\x91" * 10_000],
    ]
    for frames in junk:
        station.says(*frames)
    station.says(encode(Publication([[3, 4]], 5, True)))
    assert listener.news_until(lambda news: True) == Publication([[3, 4]], 5, True)
    assert listener.coordination.dropped == len(junk)
    listener.coordination.close()


def test_it_subscribes_again_by_itself(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    listener = Listener(address)  # nobody is there yet
    for number in range(3):
        station = Station(address)
        until(lambda station=station: station.has_news() or listener.looks())  # only looking makes libzmq say it anew
        assert station.next() == [SUBSCRIBE]
        station.says(encode(Publication([[number, 0]], number, False)))
        assert listener.news_until(lambda news: True).wave == number
        close(station.socket, 0)
    listener.coordination.request_sent(EngineRank(0))  # to nobody, and nobody waits
    listener.coordination.close()


def test_a_notice_goes_to_whoever_comes_next(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    listener = Listener(address)
    listener.coordination.request_sent(EngineRank(3))
    station = Station(address)
    assert sorted([station.next(), station.next()]) == [[SUBSCRIBE], [encode(FirstRequest(3, 0))]]
    close(station.socket, 0)
    listener.coordination.close()
