"""An engine that has died gets a successor: who is told what, when it serves again, and what ends it for good."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time

import pytest

from muro import AsyncMPClient, EngineDeadError, SyncMPClient, connect, connect_async
from muro.config import RestartPolicy
from muro.ids import EngineRank
from muro.launch.events import EngineDied, EngineReplaced, EngineStarted, Event
from muro.wire.output import FinishReason
from tests.support.asking import FOREVER, ask
from tests.support.counts import FULL, count
from tests.support.deadline import until, until_async
from tests.support.harm import HARMS, kill
from tests.support.restarts import settings

WITHIN = 0.25
"""Seconds after a kill by which every caller in flight must know."""
STREAMS = 64

pytestmark = pytest.mark.cases


class Tally:
    """How long each caller waited for the bad news, in seconds, by round."""

    def __init__(self) -> None:
        self.killed = 0.0
        self.told: list[float] = []
        self.rounds: list[list[float]] = []

    def begin(self, pid: int | None) -> None:
        self.told = []
        self.rounds.append(self.told)
        self.killed = time.monotonic()
        kill(pid)

    def hear(self, error: EngineDeadError) -> None:
        self.told.append(time.monotonic() - self.killed)
        assert error.restarting and error.retry_after is not None
        assert "SIGKILL" in str(error) and "it is being restarted" in str(error)

    def check(self, what: str) -> None:
        """Everybody in every round; the slowest rounds of a busy machine are told, and bounded."""
        assert all(len(told) == STREAMS for told in self.rounds)
        times = sorted(took for told in self.rounds for took in told)
        p50, p99, most = (took * 1000 for took in (statistics.median(times), times[int(len(times) * 0.99)], times[-1]))
        print(f"\n{what}: told after {p50:.0f} ms (p50), {p99:.0f} ms (p99), {most:.0f} ms (max)")
        assert p99 < WITHIN * 1000


async def read_to_death(client: AsyncMPClient, number: int, reading: list[int], tally: Tally) -> None:
    try:
        async for _ in client.generate(ask(f"r{number}", FOREVER)):
            reading[number] = 1
    except EngineDeadError as error:
        tally.hear(error)


@pytest.mark.timeout(1200 if FULL else 120)
def test_fc01_kills_under_sixty_four_streams() -> None:
    """Every caller in flight is told, and the next generation serves."""
    back: list[float] = []

    async def main() -> None:
        tally = Tally()
        async with await connect_async(settings()) as client:
            for generation in range(count(6, 200)):
                reading = [0] * STREAMS
                tasks = [asyncio.create_task(read_to_death(client, n, reading, tally)) for n in range(STREAMS)]
                await until_async(lambda reading=reading: sum(reading) == STREAMS)
                (status,) = client.engines()
                assert (status.generation, status.restarts, status.state) == (generation, generation, "serving")
                tally.begin(status.pid)
                await asyncio.gather(*tasks)
                assert client.engines()[0].in_flight == 0
                await client.wait_serving(30)
                back.append(time.monotonic() - tally.killed)
                assert [t async for o in client.generate(ask("after")) for t in o.new_token_ids] == [7, 8, 9]
        tally.check("64 streams, asyncio")

    asyncio.run(main())
    print(f"serving again after {statistics.median(back):.2f} s (median), {max(back):.2f} s (max)")
    assert statistics.median(back) < 3


@pytest.mark.timeout(600 if FULL else 120)
def test_fc01_kills_under_threads() -> None:
    tally = Tally()

    def read(client: SyncMPClient, number: int, reading: list[int]) -> None:
        try:
            for _ in client.generate(ask(f"r{number}", FOREVER)):
                reading[number] = 1
        except EngineDeadError as error:
            tally.hear(error)

    with connect(settings()) as client:
        for _ in range(count(2, 40)):
            reading = [0] * STREAMS
            threads = [threading.Thread(target=read, args=(client, n, reading)) for n in range(STREAMS)]
            for thread in threads:
                thread.start()
            until(lambda reading=reading: sum(reading) == STREAMS)
            tally.begin(client.engines()[0].pid)
            for thread in threads:
                thread.join(10)
            client.wait_serving(30)
    tally.check("64 threads")


@pytest.mark.parametrize("name", HARMS)
def test_fc04_fc06_whatever_it_died_of(name: str) -> None:
    """Streams and calls are told the cause; a successor serves, unless the engine has left by itself."""
    harm = HARMS[name]
    with connect(settings()) as client:
        streams = [client.generate(ask(f"r{number}", FOREVER)) for number in range(4)]
        for stream in streams:
            next(stream)
        with contextlib.suppress(EngineDeadError):
            kill(client.engines()[0].pid) if not harm.fault else client.call("inject", harm.fault)
            client.call("num_live")  # some faults need something to do
        for stream in streams:
            with pytest.raises(EngineDeadError) as caught:
                list(stream)
            assert harm.told in str(caught.value) and caught.value.restarting == (name != "exit 0")
        with pytest.raises(EngineDeadError) if name == "exit 0" else contextlib.nullcontext():
            client.wait_serving(20)
            assert list(client.generate(ask("r0")))
            assert client.engines()[0].generation == 1


def test_new_requests_are_refused_meanwhile_and_say_when_to_come_again() -> None:
    patient = RestartPolicy(policy="on-failure", backoff_first=0.5, budget=10)
    with connect(settings(patient)) as client:
        kill(client.engines()[0].pid)
        until(lambda: client.engines()[0].state == "restarting")
        for use in (lambda: client.generate(ask("a")), lambda: client.call("num_live"), client.check_health):
            with pytest.raises(EngineDeadError, match="SIGKILL") as caught:
                use()
            assert caught.value.restarting and 0.5 <= (caught.value.retry_after or 0) < 10
        with pytest.raises(EngineDeadError) as caught:
            client.wait_serving(0.05)
        assert caught.value.restarting
        client.wait_serving(20)
        client.check_health()
        assert client.call("num_live") == 0
        assert list(client.generate(ask("a")))


def test_requests_in_batches_end_in_a_batch() -> None:
    with connect(settings()) as client:
        for number in range(3):
            client.add_request(ask(f"r{number}", FOREVER))
        seen = {output.request_id for output in client.get_outputs(10).outputs}
        kill(client.engines()[0].pid)
        ended = {}
        while len(ended) < 3:
            for output in client.get_outputs(10).outputs:
                seen.add(output.request_id)
                if output.finish_reason is not None:
                    assert output.finish_reason == FinishReason.ERROR and output.error is not None
                    assert output.error.retryable and "SIGKILL" in output.error.message
                    ended[output.request_id] = output.error.code
        assert ended == dict.fromkeys(["r0", "r1", "r2"], "engine_dead")
        client.wait_serving(20)
        client.add_request(ask("r0"))
        tokens: list[int] = []
        while len(tokens) < 3:
            tokens += [t for output in client.get_outputs(10).outputs for t in output.new_token_ids]
        assert tokens == [7, 8, 9]


def test_an_idle_client_finds_the_successor() -> None:
    """Nobody waits for anything while the engine dies, and is replaced, twice."""
    with connect(settings()) as client:
        supervisor = client._link.supervisor  # type: ignore[attr-defined]
        for generation in (1, 2):
            kill(client.engines()[0].pid)
            until(lambda g=generation: supervisor.status(EngineRank(0)).generation == g)
            until(lambda: supervisor.status(EngineRank(0)).uptime is not None)
            assert list(client.generate(ask("a")))
            assert client.engines()[0].generation == generation


def test_one_of_two_is_restarted_alone() -> None:
    with connect(settings(num_engines=2)) as client:
        pinned = ask("pinned", FOREVER)
        pinned.data_parallel_rank = 1
        undisturbed = client.generate(pinned)
        next(undisturbed)
        for _ in range(2):
            dead = client.engines()[0].pid
            kill(dead)
            until(lambda: client.engines()[0].state == "restarting")
            assert client.engines()[1].state == "serving"
            client.check_health()
            client.wait_serving(0)  # the other one does
            assert all(
                [t for o in client.generate(ask(f"r{n}")) for t in o.new_token_ids] == [7, 8, 9] for n in range(4)
            )
            next(undisturbed)
            until(lambda: client.engines()[0].state == "serving")
        assert [status.generation for status in client.engines()] == [2, 0]
        assert client.call_all("num_live") == {0: 0, 1: 1}
        undisturbed.close()


def test_what_happens_is_told_to_everybody_who_listens() -> None:
    heard: list[list[Event]] = [[], []]

    def deaf(event: Event) -> None:
        raise ValueError("I do not want to hear it")

    with connect(settings()) as client:
        supervisor = client._link.supervisor  # type: ignore[attr-defined]
        for listener in (heard[0].append, deaf, heard[1].append):
            supervisor.subscribe(listener)
        kill(client.engines()[0].pid)
        until(lambda: isinstance(heard[0][-1], EngineReplaced) if heard[0] else False)
        until(lambda: client.engines()[0].state == "serving")
    assert heard[0] == heard[1]
    died, started, *_, replaced = heard[0]
    assert isinstance(died, EngineDied) and (died.rank, died.generation, died.restarting) == (0, 0, True)
    assert isinstance(started, EngineStarted) and (started.generation, started.attempt) == (1, 1)
    assert "SIGKILL" in started.cause
    assert isinstance(replaced, EngineReplaced) and replaced.generation == 1
