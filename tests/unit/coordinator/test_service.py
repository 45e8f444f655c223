"""The coordinator behind real sockets: what it hears, and what it says to whom (protocol section 15.3)."""

import logging

import msgspec
import pytest

from muro.transport.sockets import send_nowait
from muro.wire.coordination import FirstRequest, Publication, encode
from muro.wire.frames import SUBSCRIBE
from muro.wire.stats import SchedulerStats
from tests.support.coordinating import Coordinated, Engine, FrontEnd, coordinated
from tests.support.deadline import until
from tests.support.vectors import Vector, vectors

VECTORS = [vector for vector in vectors() if vector.file.startswith("coordinator-")]


def start(wave: int, exclude: object) -> list[bytes]:
    return [b"\x02", msgspec.msgpack.encode([wave, exclude])]


# --- The gate ----------------------------------------------------------------------------------------------------


def test_engines_are_ready_when_all_have_subscribed() -> None:
    with coordinated(2) as one:
        first, second = one.engine(0), one.engine(1, subscribe=False)
        second.says(scheduler_stats=SchedulerStats(1, 0))
        front_end = one.front_end()
        front_end.news_until(lambda news: news.counts is not None and news.counts[1][1] == 1)
        assert first.all() == [], "one is missing still"
        second.send(SUBSCRIBE)
        assert first.next() == second.next() == [b"READY"]


def test_one_that_comes_later_makes_everybody_hear_it_again() -> None:
    with coordinated(2) as one:
        first, second = one.engines(2)
        second.close()
        assert one.engine(1).next() == [b"READY"]
        assert first.next() == [b"READY"]


def test_one_that_has_gone_is_not_counted() -> None:
    with coordinated(2) as one:
        gone, left = one.engine(0), one.engine(1, subscribe=False)
        until(lambda: one.coordinator._subscribed == 1)
        gone.close()
        until(lambda: one.coordinator._subscribed == 0)
        left.send(SUBSCRIBE)
        again = one.engine(0)
        assert left.next() == again.next() == [b"READY"]
        assert left.all() == []


def test_when_all_have_gone_nothing_runs_and_nobody_has_work() -> None:
    with coordinated(2, lockstep=True) as one:
        engines, front_end = one.engines(2), one.front_end()
        engines[0].reports(3, 4)
        engines[0].says(start_wave=5)
        front_end.news_until(lambda news: news.running and news.wave == 5)
        front_end.news_until(lambda news: news.counts is not None and news.counts[0][:2] == [3, 4])
        engines[1].close()
        engines[0].close()
        front_end.news_until(lambda news: not news.running and news.wave == 5)
        front_end.news_until(lambda news: news.counts == [[0, 0, 0.0]] * 2)
        fresh = one.engines(2)
        fresh[1].says(start_wave=0)  # they begin at 0 again, and are told where the others are
        assert fresh[0].next() == fresh[1].next() == start(5, None)


# --- Load --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("release", "row"), [("0.25.1", [3, 4]), ("0.33.0", [3, 4, 0.5])])
def test_load_is_published_in_the_shape_of_the_release(release: str, row: list[float]) -> None:
    with coordinated(2, release=release) as one:
        _, engine = one.engines(2)
        front_ends = [one.front_end(), one.front_end()]
        engine.reports(3, 4, 0.5)
        for front_end in front_ends:
            news = front_end.news_until(lambda news: news.counts is not None and news.counts[1][0] == 3)
            assert news == Publication([[0] * len(row), row], 0, False)


def test_a_front_end_that_comes_late_knows_all_at_once() -> None:
    with coordinated(1) as one:
        (engine,) = one.engines(1)
        engine.reports(0, 7)
        one.front_end().news_until(lambda news: news.counts == [[0, 7, 0.0]])
        late = FrontEnd(one.config)
        one._peers.append(late)
        assert late.news() == Publication([[0, 7, 0.0]], 0, False)


def test_ranks_that_are_added_while_serving() -> None:
    with coordinated(1) as one:
        one.engines(1)
        front_end = one.front_end()
        front_end.send(msgspec.msgpack.encode(["SCALE_ELASTIC_EP", 3]))
        assert front_end.news_until(lambda news: len(news.counts or []) == 3)
        one.engine(2).reports(5, 5)
        assert front_end.news_until(lambda news: bool(news.counts) and news.counts[2][0] == 5)


# --- Waves -------------------------------------------------------------------------------------------------------


def test_a_wave_from_the_first_request_to_its_end() -> None:
    """Front-ends up to 0.32, engines up to 0.32."""
    with coordinated(2, lockstep=True) as one:
        engines = one.engines(2)
        front_end, other = one.front_end(), one.front_end()
        front_end.send(encode(FirstRequest(b"\x01\x00", 0)))
        for engine in engines:
            assert engine.next() == start(0, b"\x01\x00"), "relayed unchanged"
        for each in (front_end, other):
            assert each.news_until(lambda news: news.counts is None) == Publication(None, 0, True)
        engines[0].says(wave_complete=0)
        assert other.news_until(lambda news: news.counts is None) == Publication(None, 1, False)
        front_end.send(encode(FirstRequest(1, 0)))  # it has not heard of that
        assert engines[1].next() == start(1, None)


def test_an_engine_that_starts_a_wave() -> None:
    """0.33, and what an engine up to 0.32 says to a request that comes too late."""
    with coordinated(2, lockstep=True) as one:
        engines = one.engines(2)
        front_end = one.front_end()
        engines[1].says(start_wave=4)
        for engine in engines:
            assert engine.next() == start(4, 1)
        assert front_end.news_until(lambda news: news.counts is None) == Publication(None, 4, True)


def test_independent_ranks_have_no_waves() -> None:
    with coordinated(2) as one:
        engines = one.engines(2)
        front_end = one.front_end()
        front_end.send(encode(FirstRequest(1, 0)))
        engines[0].says(start_wave=4)
        engines[0].reports(1, 1)
        assert front_end.news_until(lambda news: bool(news.counts) and news.counts[0][0] == 1).running is False
        assert engines[1].all() == []


# --- The recorded messages of both releases ----------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.release} {vector.name}")
def test_recorded_messages(vector: Vector) -> None:
    """Those to the coordinator are sent to it; those of it are brought about."""
    with coordinated(2, lockstep=True, release=vector.release) as one:
        engines = one.engines(2)
        front_end = one.front_end()
        REPLAYS[vector.name](vector, one, engines, front_end)
        assert one.alive


def _subscribe(vector: Vector, one: Coordinated, engines: list[Engine], front_end: FrontEnd) -> None:
    late, ear = one.engine(1, subscribe=False), FrontEnd(one.config)
    one._peers.append(ear)
    late.send(*vector.bytes)
    assert late.next() == [b"READY"] and ear.news().counts is not None


def _publish_counts(vector: Vector, one: Coordinated, engines: list[Engine], front_end: FrontEnd) -> None:
    counts, wave, running = vector.tree
    engines[0].says(start_wave=wave)
    for engine, (waiting, busy, *rest) in zip(engines, counts, strict=True):
        engine.reports(waiting, busy, *rest)
    while front_end.next() != vector.bytes:
        pass
    assert running


def _publish_wave_change(vector: Vector, one: Coordinated, engines: list[Engine], front_end: FrontEnd) -> None:
    engines[0].says(wave_complete=vector.tree[1] - 1)
    while front_end.next() != vector.bytes:
        pass


def _first_request(vector: Vector, one: Coordinated, engines: list[Engine], front_end: FrontEnd) -> None:
    engines[0].says(wave_complete=2)
    front_end.news_until(lambda news: news.wave == 3)
    front_end.send(*vector.bytes)
    assert engines[1].next() == start(3, b"\x01\x00")
    assert front_end.news_until(lambda news: news.running) == Publication(None, 3, True)


def _scale(vector: Vector, one: Coordinated, engines: list[Engine], front_end: FrontEnd) -> None:
    front_end.send(*vector.bytes)
    until(lambda: one.coordinator.dropped == 1)  # a lockstep group does not change while it runs


REPLAYS = {
    "subscribe": _subscribe,
    "publish_counts": _publish_counts,
    "publish_wave_change": _publish_wave_change,
    "first_request_python": _first_request,
    "scale_elastic_ep": _scale,
}


def test_all_recordings_are_there() -> None:
    assert {vector.release for vector in VECTORS} == {"0.25.1", "0.33.0"} and len(VECTORS) == 9


# --- Junk --------------------------------------------------------------------------------------------------------

JUNK = [
    [b"\x05"],
    [b""],
    [b"\x01topic"],
    [b"\xc1" * 100],
    [b"\x91" * 5000],
    [b"\x02", b"\x92\x00\xc0"],
    [msgspec.msgpack.encode([None, 2**64 - 1])],
    [msgspec.msgpack.encode(["SCALE_ELASTIC_EP", 2**40])],
    [msgspec.msgpack.encode([99, []])],
    [msgspec.msgpack.encode([0, [], None, 0.0, None, None, 2**64 - 1])],
    [msgspec.msgpack.encode([0, [], None, 0.0, None, None, None, -5])],
    [msgspec.msgpack.encode([0, [], {"num_running_reqs": -1, "num_waiting_reqs": 0}])],
    [b"ENGINE_CORE_DEAD"],
]


@pytest.mark.cases
@pytest.mark.parametrize("is_lockstep", [False, True])
def test_fc08_junk_on_its_sockets_costs_nothing(is_lockstep: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with coordinated(2, lockstep=is_lockstep) as one:
        engines = one.engines(2)
        front_end = one.front_end()
        stranger = Engine(one.config, 9)
        one._peers.append(stranger)
        for frames in JUNK:
            front_end.send(*frames)
            stranger.send(*frames)
            assert send_nowait(stranger.mouth, frames)
        engines[1].reports(6, 1)
        news = front_end.news_until(lambda news: bool(news.counts) and news.counts[1][0] == 6)
        assert news.counts is not None and len(news.counts) == 2
        assert (news.wave, news.running) == (0, False)
        assert engines[0].all() == []
        until(lambda: one.coordinator.dropped >= len(JUNK))
        assert one.alive
    assert len([record for record in caplog.records if "not the protocol" in record.message]) == 1
