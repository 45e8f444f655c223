"""Lockstep ranks in processes of their own, with and without a coordinator, which may die."""

import os
import signal

import pytest

from muro.ids import EngineRank
from muro.wire.coordination import FirstRequest, Publication, encode
from muro.wire.output import FinishReason
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until
from tests.support.raw_ranks import RawRanks, raw_ranks
from tests.support.rawpeer import WAVE, pack

PACE = {"step_us": 2000}
LENGTH = FinishReason.LENGTH


def finishes(ranks: RawRanks, *names: str) -> None:
    assert [output.finish_reason for output in ranks.client.finish(*names)] == [LENGTH] * len(names)


def test_ranks_without_a_coordinator_wake_each_other() -> None:
    with raw_ranks(3, lockstep=True, **PACE) as ranks:
        assert {r.data_parallel_size for r in ranks.responses.values()} == {3}
        for number in range(6):
            ranks.client.add_to(number % 3, ask(f"r{number}", 40))
            finishes(ranks, f"r{number}")
        assert ranks.stop() == [0, 0, 0]


def test_many_requests_on_all_ranks_at_once() -> None:
    with raw_ranks(2, lockstep=True, coordinated=True, settings={"group": {"interval": 4}}) as ranks:
        for number in range(200):
            ranks.client.add_to(number % 2, ask(f"r{number}", 1 + number % 37))
        finishes(ranks, *[f"r{number}" for number in range(200)])


def test_a_wave_is_published_from_its_beginning_to_its_end() -> None:
    with raw_ranks(2, lockstep=True, coordinated=True, **PACE) as ranks:
        front_end = ranks.front_end()
        assert front_end.news() == Publication([[0, 0, 0.0]] * 2, 0, False)
        ranks.client.add_to(1, ask("r", 100))
        assert front_end.news_until(lambda news: news.running).wave == 0
        assert front_end.news_until(lambda news: bool(news.counts and news.counts[1][1])).running
        finishes(ranks, "r")
        assert front_end.news_until(lambda news: not news.running).wave == 1
        assert front_end.news_until(lambda news: bool(news.counts) and news.counts[1][1] == 0)


def test_a_front_end_of_the_old_rule() -> None:
    with raw_ranks(2, lockstep=True, coordinated=True, **PACE) as ranks:
        front_end = ranks.front_end()
        for wave in range(3):
            front_end.send(encode(FirstRequest(b"\x01\x00", wave)))
            assert front_end.news_until(lambda news: news.running)
            request = ask(f"r{wave}", 50)
            request.current_wave = wave
            ranks.client.add_to(1, request)
            finishes(ranks, f"r{wave}")
            front_end.news_until(lambda news, wave=wave: not news.running and news.wave > wave)


def test_a_front_end_that_starts_waves_over_the_input_sockets() -> None:
    with raw_ranks(2, lockstep=True, **PACE) as ranks:
        client = ranks.client
        for wave in range(1, 4):
            for client.rank in (0, 1):
                client.send(WAVE, pack([wave, None]))
            client.add_to(1, ask(f"r{wave}", 40))
            finishes(ranks, f"r{wave}")
        client.read_until(lambda: len(client.completed) > 0)
        assert client.completed == sorted(client.completed)


@pytest.mark.cases
def test_the_coordinator_is_killed_and_streams_go_on() -> None:
    with raw_ranks(2, lockstep=True, coordinated=True, **PACE) as ranks:
        assert ranks.keeper is not None
        client, front_end = ranks.client, ranks.front_end()
        client.add_to(1, ask("long", FOREVER))
        client.read_until(lambda: len(client.tokens.get("long", ())) > 10)
        for death in range(1, 4):
            os.kill(ranks.keeper.pid or 0, signal.SIGKILL)
            before = len(client.tokens["long"])
            client.add_to(0, ask(f"r{death}", 20))
            finishes(ranks, f"r{death}")
            client.read_until(lambda before=before: len(client.tokens["long"]) > before + 20)
            until(lambda death=death: ranks.keeper is not None and ranks.keeper.generation == death)
            again = ranks.front_end()
            news = again.news_until(lambda news: bool(news.counts and news.counts[1][1]))
            assert news.running or again.news_until(lambda news: news.running), "it has been told that they run"
        client.rank = 1
        client.abort(["long"])
        again.news_until(lambda news: not news.running and news.counts == [[0, 0, 0.0]] * 2)
        front_end.news_until(lambda news: not news.running and news.wave > 0)
        client.add_to(0, ask("last", 20))
        finishes(ranks, "last")


def test_who_waits_for_a_dead_rank_ends_and_names_it() -> None:
    with raw_ranks(3, lockstep=True, settings={"group": {"timeout": 1.0}}, **PACE) as ranks:
        ranks.client.add_to(0, ask("a", FOREVER))
        ranks.client.read_until(lambda: bool(ranks.client.tokens))
        ranks.children[EngineRank(2)].kill()
        for rank in (0, 1):
            child = ranks.children[EngineRank(rank)]
            assert child.wait(20)
            record = child.failure()
            assert record is not None and child.poll() == 10
            assert "lockstep rank 2 did not take part in agreement" in record.message


def test_independent_ranks_report_to_the_coordinator_and_to_its_successor() -> None:
    with raw_ranks(2, coordinated=True, **PACE) as ranks:
        assert ranks.keeper is not None
        assert {r.data_parallel_size for r in ranks.responses.values()} == {1}
        assert {r.dp_stats_address for r in ranks.responses.values()} == {ranks.coordinator.stats_address}
        front_end, client = ranks.front_end(), ranks.client
        client.add_to(1, ask("a", FOREVER))
        assert not front_end.news_until(lambda news: news.counts is not None and news.counts[1][1] == 1).running
        os.kill(ranks.keeper.pid or 0, signal.SIGKILL)
        until(lambda: ranks.keeper is not None and ranks.keeper.generation == 1)
        again = ranks.front_end()
        again.news_until(lambda news: news.counts is not None and news.counts[1][1] == 1)
        client.abort(["a"])
        again.news_until(lambda news: news.counts is not None and news.counts[1][1] == 0)
