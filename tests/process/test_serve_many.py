"""`muro serve --api-server-count N`: several server processes, one port, the same engines."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx
import psutil
import pytest

from muro.transport.endpoint import remove_stale
from tests.support.counts import FULL, count
from tests.support.crews import Stream, engine_pids, everybodys, healths, server_pids
from tests.support.deadline import process_ended, until, until_async
from tests.support.server import Server

PATIENT = ("--restart-budget", "10000/60", "--restart-backoff", "0.02/0.1")
PACED = ("--engine", "paced", "--engine-option", "step_ms=5")
ASKED = {"prompt": "hello", "max_tokens": 5}

pytestmark = [pytest.mark.cases, pytest.mark.timeout(600 if FULL else 120)]


@contextmanager
def crew(servers: int, engines: int, *arguments: str) -> Iterator[Server]:
    """That many servers in front of that many engines, all of which serve."""
    many = ("--api-server-count", str(servers), "--data-parallel-size", str(engines))
    with Server(*many, *arguments) as server:
        yield server.ready(within=120)


def serving_again(server: Server, servers: int) -> Callable[[], bool]:
    def look() -> bool:
        health = healths(server)
        return health["status"] == "ok" and [s["state"] for s in health["servers"]] == ["serving"] * servers

    return look


def running(server: Server) -> int:
    return sum(engine["running"] for engine in healths(server)["engines"])


def busiest(pids: Sequence[int]) -> tuple[int, int]:
    """Place and process of the server with the most connections: the kernel gives them to whoever is first."""
    connections = [len(psutil.Process(pid).net_connections("tcp")) for pid in pids]
    index = connections.index(max(connections))
    return index, pids[index]


async def started(
    url: str, number: int, tokens: int, rank: int | None = None
) -> tuple[list[Stream], list[asyncio.Task[Stream]]]:
    """Streams that have all begun."""
    streams = [Stream(url, f"stream {n} ", tokens, rank) for n in range(number)]
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    await until_async(lambda: all(stream.pieces for stream in streams), within=30, what="all streams have begun")
    return streams, tasks


def test_each_stream_gets_its_own_tokens() -> None:
    number = count(120, 1000)
    prompts = [f"this is what caller {n} says" for n in range(number)]

    async def ask(url: str) -> list[Stream]:
        return await asyncio.gather(*(Stream(url, prompt, len(prompt)).run() for prompt in prompts))

    with crew(4, 2, *PACED) as server:
        streams = asyncio.run(ask(server.url))
        assert [stream.text for stream in streams] == prompts
        assert all(stream.whole and stream.reason == "length" for stream in streams)
        heard = everybodys(server, 4)
        assert {len(health["servers"]) for health in heard.values()} == {4}
        assert server.metric("vllm:request_success_total") == number
        assert server.metric("vllm:generation_tokens_total") == sum(map(len, prompts))
        assert server.metric("muro:requests_total") == number and server.metric("muro:server_up") == 4
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0 and "Traceback" not in server.errors()


def test_a_killed_server_takes_its_own_streams_alone() -> None:
    """Engines stop working for it; it is replaced, and its successor has all engines, also those replaced before."""

    async def scenario(server: Server) -> int:
        streams, tasks = await started(server.url, 40, 10_000)
        until(lambda: running(server) == 40)
        index, victim = busiest(server_pids(server))
        os.kill(victim, signal.SIGKILL)
        process_ended(victim)
        await until_async(lambda: any(task.done() for task in tasks), what="streams of the killed server have ended")
        before = [stream.pieces for stream in streams]

        def others_went_on() -> bool:
            now = zip(streams, tasks, before, strict=True)
            return all(task.done() or stream.pieces > seen + 20 for stream, task, seen in now)

        await until_async(others_went_on, what="the others went on")
        lost = sum(task.done() for task in tasks)
        assert lost > 0 and not any(stream.whole or stream.error for stream in streams)
        await until_async(serving_again(server, 3), within=60, what="the server is replaced")
        await until_async(lambda: running(server) == 40 - lost, what="engines work for those who are there")
        assert sum(task.done() for task in tasks) == lost
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return index

    with crew(3, 2, *PACED, *PATIENT) as server:
        pids = engine_pids(server)
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: healths(server)["engines"][1]["generation"] == 1 and healths(server)["status"] == "ok", within=30)
        index = asyncio.run(scenario(server))
        heard = everybodys(server, 3)
        assert [each["generation"] for each in heard[1]["servers"]] == [int(n == index) for n in range(3)]
        assert {tuple(e["pid"] for e in health["engines"]) for health in heard.values()} == {tuple(engine_pids(server))}
        assert engine_pids(server)[0] == pids[0], "no engine has noticed"
        until(lambda: running(server) == 0, what="nothing is left behind")
        ranks = [Stream(server.url, "to each", 7, rank) for rank in (0, 1) * 12]

        async def ask() -> None:
            await asyncio.gather(*(stream.run() for stream in ranks))

        asyncio.run(ask())
        assert {(stream.text, stream.whole) for stream in ranks} == {("to each", True)}
        assert f"server {index} has died, and is replaced" in server.errors()


def test_a_server_that_somebody_asked_to_stop_drains_and_is_replaced() -> None:
    """The port stays open meanwhile, for it is shared."""

    async def scenario(server: Server) -> None:
        _, tasks = await started(server.url, 20, 1500)
        os.kill(server_pids(server)[0], signal.SIGTERM)
        assert {(s.whole, s.reason) for s in await asyncio.gather(*tasks)} == {(True, "length")}

    with crew(2, 1, *PACED, *PATIENT, "--shutdown-timeout", "60") as server:
        pid = server_pids(server)[0]
        asyncio.run(scenario(server))
        process_ended(pid)
        until(lambda: healths(server)["servers"][0]["generation"] == 1 and serving_again(server, 2)(), within=60)
        assert set(everybodys(server, 2)) == {0, 1}


def test_an_engine_is_replaced_under_all_servers() -> None:
    async def scenario(server: Server) -> None:
        mine, tasks = await started(server.url, 16, 10_000, rank=0)
        others, others_tasks = await started(server.url, 16, 10_000, rank=1)
        os.kill(engine_pids(server)[0], signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert {(stream.error or {}).get("code") for stream in mine} == {"engine_dead"}
        before = [stream.pieces for stream in others]
        await until_async(lambda: all(s.pieces > seen + 20 for s, seen in zip(others, before, strict=True)))
        assert not any(task.done() for task in others_tasks)
        again = await asyncio.gather(*(Stream(server.url, "again", 5, rank=0).run() for _ in range(16)))
        assert {(stream.text, stream.whole) for stream in again} == {("again", True)}
        for task in others_tasks:
            task.cancel()
        await asyncio.gather(*others_tasks, return_exceptions=True)

    with crew(3, 2, *PACED, *PATIENT) as server:
        for generation in range(1, count(2, 20)):
            asyncio.run(scenario(server))
            heard = everybodys(server, 3)
            assert {health["engines"][0]["generation"] for health in heard.values()} == {generation}


@pytest.mark.slow
def test_lockstep_engines_come_back_together_under_all_servers() -> None:
    async def scenario(server: Server) -> None:
        streams = [Stream(server.url, "say it again", 4000, rank=number % 2) for number in range(12)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until_async(lambda: all(stream.pieces > 5 for stream in streams), within=30)
        os.kill(engine_pids(server)[1], signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert {(stream.error or {}).get("code") for stream in streams} == {"engine_dead"}
        again = await asyncio.gather(*(Stream(server.url, "again", 5, rank=n % 2).run() for n in range(12)))
        assert {stream.reason for stream in again} == {"length"}

    sim = ("--engine", "sim", "--engine-option", "step_us=5000", "--engine-option", "lockstep=true")
    with crew(2, 2, *sim, "--data-parallel-lockstep", *PATIENT) as server:
        for generation in range(1, 3):
            asyncio.run(scenario(server))
            for health in everybodys(server, 2).values():
                assert {engine["generation"] for engine in health["engines"]} == {generation}
        os.kill(server_pids(server)[0], signal.SIGKILL)  # the next one must find the doors of the second generation
        until(lambda: len(everybodys(server, 2)) == 2, within=60)
        again = asyncio.run(all_of(*(Stream(server.url, "again", 5, rank=n % 2) for n in range(12))))
        assert {stream.reason for stream in again} == {"length"}


async def all_of(*streams: Stream) -> list[Stream]:
    return list(await asyncio.gather(*(stream.run() for stream in streams)))


@pytest.mark.slow
def test_requests_are_replayed_under_all_servers() -> None:
    async def scenario(server: Server) -> None:
        streams = [Stream(server.url, "say it again", 600) for _ in range(12)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until_async(lambda: all(stream.pieces > 5 for stream in streams), within=30)
        os.kill(engine_pids(server)[0], signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert {(stream.whole, stream.reason) for stream in streams} == {(True, "length")}

    sim = ("--engine", "sim", "--engine-option", "step_us=5000", "--on-engine-death", "replay")
    with crew(2, 1, *sim, *PATIENT) as server:
        asyncio.run(scenario(server))
        assert server.metric("muro:requests_replayed_total") == 12


@pytest.mark.slow
def test_numbers_add_up_and_never_go_back() -> None:
    with crew(2, 1, "--engine", "echo", *PATIENT) as server:
        asked = 0
        for _ in range(3):
            heard: set[int] = set()
            while len(heard) < 2:
                heard |= set(everybodys(server, 2))
                assert httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=10).status_code == 200
                asked += 1
                assert server.metric("vllm:request_success_total") == asked
            os.kill(server_pids(server)[0], signal.SIGKILL)
            assert server.metric("vllm:request_success_total") == asked
            until(serving_again(server, 2), within=60)
        assert server.metric("muro:server_generation") == 3
        limits = server.metric("muro:queued_requests_limit")
        assert limits == 2 * 2048 and server.metric("muro:engine_up") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_orderly(number: signal.Signals) -> None:
    async def scenario(server: Server) -> None:
        streams, tasks = await started(server.url, 12, 100_000)
        server.signal(number)
        await asyncio.gather(*tasks)
        assert {(stream.whole, stream.reason) for stream in streams} == {(True, "abort")}

    with crew(3, 2, *PACED) as server:
        pids = [*server_pids(server), *engine_pids(server)]
        asyncio.run(scenario(server))
        assert server.exit_code(20) == 0
        for pid in pids:
            process_ended(pid, within=0.1)
        assert server.output().splitlines()[-1] == "stopped" and server.errors().count("\n") <= 30
        assert "Traceback" not in server.errors() and "ERROR" not in server.errors()


def test_with_patience_streams_end_by_themselves_and_a_second_signal_ends_it() -> None:
    async def scenario(server: Server) -> None:
        short, long = await started(server.url, 6, 300), await started(server.url, 6, 100_000)
        server.signal(signal.SIGTERM)
        await asyncio.gather(*short[1])
        assert {(stream.whole, stream.reason) for stream in short[0]} == {(True, "length")}
        assert not any(task.done() for task in long[1])
        server.signal(signal.SIGTERM)
        await asyncio.gather(*long[1])
        assert {(stream.whole, stream.reason) for stream in long[0]} == {(True, "abort")}

    with crew(2, 1, *PACED, "--shutdown-timeout", "60") as server:
        asyncio.run(scenario(server))
        assert server.exit_code(20) == 0


def test_a_stop_does_not_wait_for_words_to_servers_that_have_gone() -> None:
    """The engine hears all that it was asked when they have: what it answers would linger for 4 s."""

    async def scenario(server: Server) -> None:
        _, tasks = await started(server.url, 8, 100_000)
        os.kill(engine_pids(server)[0], signal.SIGSTOP)
        server.signal(signal.SIGTERM)
        await asyncio.gather(*tasks)

    with crew(2, 1, *PACED) as server:
        asyncio.run(scenario(server))
        assert server.exit_code(3.8) == 0


def test_when_the_parent_is_killed_all_end() -> None:
    with crew(2, 2, "--engine", "echo") as server:
        pids = [*server_pids(server), *engine_pids(server)]
        server.signal(signal.SIGKILL)
        for pid in pids:
            process_ended(pid, within=5)
        assert server.exit_code() == -signal.SIGKILL
    assert remove_stale(tempfile.gettempdir()), "the next one removes the directory of the killed one"


def test_servers_that_die_again_and_again_end_the_crew() -> None:
    with crew(2, 1, "--engine", "echo", "--restart-budget", "2/60", "--restart-backoff", "0.01/0.1") as server:
        for generation in range(3):
            until(
                lambda g=generation: serving_again(server, 2)() and healths(server)["servers"][0]["generation"] == g,
                within=60,
            )
            os.kill(server_pids(server)[0], signal.SIGKILL)
        assert server.exit_code(30) == 13
        assert "No server is started again: it has died 3 times within 60 s" in server.errors()
        assert "Traceback" not in server.errors()


def test_an_engine_that_is_not_started_again_ends_the_crew() -> None:
    with crew(2, 1, "--engine", "echo", "--restart", "never") as server:
        os.kill(engine_pids(server)[0], signal.SIGKILL)
        until(lambda: server.status("/readyz") == 503)
        assert server.exit_code(20) == 10
        assert "is replaced" not in server.errors() and "Traceback" not in server.errors()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--engine", "echo", "--tokenizer", "/nowhere"), 2, "/nowhere"),
        (("--engine", "echo", "--ssl-keyfile", "/nowhere"), 2, "--ssl-keyfile needs --ssl-certfile"),
        (("--engine", "echo", "-dp", "2", "-dpl", "1"), 2, "--api-server-count works with engines that are all"),
        (("--engine", "nosuchengine"), 2, "nosuchengine"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_left(arguments: tuple[str, ...], code: int, words: str) -> None:
    with Server("--api-server-count", "2", *arguments) as server:
        assert server.exit_code(60) == code
        assert words in server.errors() and "Traceback" not in server.errors()


def test_stopped_while_it_starts() -> None:
    with Server("--api-server-count", "2", "--engine", "sim", "--fault", "loading:hang") as server:
        until(lambda: "loading" in server.errors() or server.process.poll() is not None, within=60)
        server.signal(signal.SIGTERM)
        assert server.exit_code(20) == 0, server.errors()
        assert server.output() == "stopped\n"


def test_health_has_a_port_of_its_own() -> None:
    with crew(2, 1, "--engine", "echo", "--health-port", "0", "--log-level", "INFO") as server:
        until(lambda: "health is answered on http" in server.errors())
        url = server.errors().split("health is answered on ")[1].split(",")[0]
        health = httpx.get(f"{url}/health", timeout=5)
        assert health.status_code == 200 and len(health.json()["servers"]) == 2
    assert server.process.returncode == 0


@pytest.mark.timeout(600 if FULL else 180)
def test_fc23_many_servers_at_once() -> None:
    """All bind their doors at the same moment, and all are found."""
    number = count(6, 32)
    began = time.monotonic()
    with crew(number, 1, "--engine", "echo") as server:
        ready = time.monotonic()
        assert [each["state"] for each in healths(server)["servers"]] == ["serving"] * number
        assert httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=10).status_code == 200
        server.signal(signal.SIGTERM)
        asked = time.monotonic()
        assert server.exit_code(60) == 0
        assert "Traceback" not in server.errors() and "killed" not in server.errors()
    print(f"\n{number} servers: ready in {ready - began:.1f} s, ended in {time.monotonic() - asked:.1f} s")


@pytest.mark.slow
def test_fc45_idle_servers_are_idle() -> None:
    seconds = count(3, 60)
    with crew(4, 2, "--engine", "echo") as server:
        pids = [server.process.pid, *server_pids(server), *engine_pids(server)]
        before = [processor_seconds(pid) for pid in pids]
        threading.Event().wait(seconds)
        spent = [processor_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
        assert max(spent) <= 0.01 * seconds + 0.005, spent
        print(f"\nprocessor time of parent, 4 servers, 2 engines in {seconds} s: {[round(s, 2) for s in spent]}")


def processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
