"""Lockstep engines behind a client: they step together, die together, come back together; so does the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import muro
from muro import ConfigError, EngineDeadError, StartupError, SyncMPClient, connect, connect_async
from muro.config import ConnectConfig, EngineConfig, LockstepConfig, RestartPolicy
from muro.launch.events import EngineDied, EngineGivenUp, EngineReplaced, Event
from muro.wire.failure import ExitCode
from muro.wire.output import FinishReason
from tests.support.asking import FOREVER, ask
from tests.support.counts import count
from tests.support.deadline import process_ended, until, until_async
from tests.support.elsewhere import engine_elsewhere, free_port
from tests.support.harm import kill
from tests.support.restarts import PATIENT

PACE = {"step_us": 1000, "lockstep": True}


def settings(size: int, restart: RestartPolicy = PATIENT, group: dict[str, Any] | None = None, **more: Any) -> Any:
    engine = EngineConfig(engine="sim", options=PACE, lockstep=LockstepConfig(**(group or {})))
    return ConnectConfig(engine=engine, num_engines=size, restart=restart, **more)


@contextlib.contextmanager
def lockstep(size: int, **more: Any) -> Iterator[SyncMPClient]:
    with connect(settings(size, **more)) as client:
        yield client


def generate(client: SyncMPClient, name: str, tokens: int, rank: int | None = None) -> int:
    request = ask(name, tokens)
    request.data_parallel_rank = rank
    outputs = list(client.generate(request))
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    return sum(len(output.new_token_ids) for output in outputs)


def steps(client: SyncMPClient) -> list[int]:
    return [status.progress.steps_ended for status in client.engines() if status.progress is not None]


def at_rest(client: SyncMPClient) -> bool:
    """Whether no rank steps any more."""
    return all(status.progress is not None and status.progress.idle for status in client.engines())


def coordinator_pid(client: SyncMPClient) -> int:
    keeper = client._link._shared.keeper  # type: ignore[attr-defined]
    assert keeper is not None and keeper.pid is not None
    return int(keeper.pid)


@pytest.mark.parametrize("size", [2, 4])
def test_a_request_on_one_rank_has_the_others_compute_dummy_batches(size: int) -> None:
    with lockstep(size, group={"interval": 4}) as client:
        statuses = client.engines()
        assert {status.ready.data_parallel_size for status in statuses if status.ready} == {size}
        assert [status.ready.data_parallel_rank for status in statuses if status.ready] == list(range(size))
        for wave in range(3):
            before = steps(client)
            assert generate(client, f"r{wave}", 60, rank=wave % size) == 60
            until(lambda: at_rest(client))
            took = [after - was for was, after in zip(before, steps(client), strict=True)]
            assert min(took) >= 60, "each rank has computed every step, with work or without"
            assert max(took) < 60 + 20 and len(set(took)) == 1, "and all have paused after the same one"


def test_the_wave_is_followed_and_requests_state_it() -> None:
    with lockstep(2, group={"interval": 2}) as client:
        session = client._session
        for wave in range(1, 4):
            stream = client.generate(ask(f"r{wave}", 30))
            next(stream)
            list(stream)
            # Who waits hears the coordinator, too.
            until(lambda: client.call("is_scheduler_paused") is False and session.wave >= 1)
            until(lambda: at_rest(client))


def test_requests_on_all_ranks_in_any_order_all_end() -> None:
    with lockstep(4, group={"interval": 4}) as client:
        streams = [client.generate(ask(f"r{n}", 1 + n % 23)) for n in range(count(200, 4000))]
        for n, stream in enumerate(streams):
            assert sum(len(output.new_token_ids) for output in stream) == 1 + n % 23


def test_fc37_a_pause_and_its_end_leave_no_request_behind() -> None:
    with lockstep(2, group={"interval": 2}) as client:
        for turn in range(3):
            client.call_all("pause_scheduler", "keep")
            streams = [client.generate(ask(f"r{turn}-{n}", 20)) for n in range(6)]
            until(lambda: at_rest(client))
            client.call_all("resume_scheduler")
            assert [sum(len(o.new_token_ids) for o in stream) for stream in streams] == [20] * 6
            until(lambda: at_rest(client))


def test_one_that_is_killed_brings_the_group_back() -> None:
    with lockstep(4) as client:
        events: list[Event] = []
        client._link.supervisor.subscribe(events.append)  # type: ignore[attr-defined]
        for generation in range(1, 4):
            victim = generation % 4
            pids = [status.pid for status in client.engines()]
            streams = [client.generate(ask(f"s{generation}-{n}", FOREVER)) for n in range(8)]
            for stream in streams:
                next(stream)
            events.clear()
            kill(pids[victim])
            for stream in streams:
                with pytest.raises(EngineDeadError) as caught:
                    list(stream)
                assert caught.value.restarting and f"engine {victim} (sim)" in str(caught.value)
                assert "SIGKILL" in str(caught.value), "everybody is told the one cause"
            client.wait_serving(30)
            assert [status.generation for status in client.engines()] == [generation] * 4
            assert not {status.pid for status in client.engines()} & set(pids)
            assert sum(isinstance(event, EngineDied) for event in events) == 4
            assert sum(isinstance(event, EngineReplaced) for event in events) == 4
            for rank in range(4):
                assert generate(client, f"r{generation}-{rank}", 40, rank) == 40


def test_without_a_policy_the_death_of_one_is_the_end_of_all() -> None:
    with lockstep(2, restart=RestartPolicy()) as client:
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        pids = [status.pid for status in client.engines()]
        events: list[Event] = []
        client._link.supervisor.subscribe(events.append)  # type: ignore[attr-defined]
        kill(pids[1])
        with pytest.raises(EngineDeadError, match=r"engine 1 \(sim\)"):
            list(stream)
        for pid in pids:
            process_ended(pid or 0)
        until(lambda: sum(isinstance(event, EngineGivenUp) for event in events) == 2)
        with pytest.raises(EngineDeadError):
            client.generate(ask("b"))


@pytest.mark.cases
def test_the_coordinator_is_killed_under_load_and_nothing_is_lost() -> None:
    with lockstep(2, group={"interval": 4}) as client:
        for death in range(3):
            streams = [client.generate(ask(f"r{death}-{n}", 100 + n)) for n in range(16)]
            for stream in streams:
                next(stream)
            pid = coordinator_pid(client)
            kill(pid)
            more = [client.generate(ask(f"m{death}-{n}", 50)) for n in range(16)]
            tokens = [sum(len(o.new_token_ids) for o in stream) for stream in streams]
            assert [told + 1 for told in tokens] == [100 + n for n in range(16)]
            assert [sum(len(o.new_token_ids) for o in stream) for stream in more] == [50] * 16
            until(lambda pid=pid: coordinator_pid(client) != pid)
            until(lambda: at_rest(client))


def test_requests_are_replayed_by_the_next_generation() -> None:
    async def main() -> None:
        config = settings(2)
        llm = await muro.AsyncLLM.start(
            engine="sim", options=PACE | {"tokens": "sampled"}, connect=config, on_engine_death="replay"
        )
        try:
            params = muro.SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)

            async def text(number: int) -> str:
                return [output.outputs[0].text async for output in llm.generate(f"prompt {number}", params)][-1]

            calm = await asyncio.gather(*(text(n) for n in range(6)))
            rough = [asyncio.create_task(text(n)) for n in range(6)]
            await until_async(lambda: sum(status.in_flight for status in llm.engines()) == 6)
            kill(llm.engines()[1].pid)
            assert await asyncio.gather(*rough) == calm
            assert {status.generation for status in llm.engines()} == {1}
        finally:
            await llm.aclose()

    asyncio.run(main())


def test_the_asyncio_client() -> None:
    async def main() -> int:
        async with await connect_async(settings(2, group={"interval": 2})) as client:
            pid = coordinator_pid(client)  # type: ignore[arg-type]
            for n in range(20):
                tokens = [t async for output in client.generate(ask(f"r{n}", 15)) for t in output.new_token_ids]
                assert len(tokens) == 15
            await until_async(lambda: client._session.wave > 0)
            return pid

    process_ended(asyncio.run(main()))


def test_a_client_that_nobody_closed_takes_everything_along() -> None:
    client = connect(settings(2))
    pids = [coordinator_pid(client), *(status.pid or 0 for status in client.engines())]
    del client
    gc.collect()
    for pid in pids:
        process_ended(pid)


def test_a_forked_process_leaves_everything_alone() -> None:
    with lockstep(2) as client:
        if not (child := os.fork()):
            client._finalizer()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert coordinator_pid(client) and generate(client, "a", 10) == 10
        os.kill(coordinator_pid(client), 0)


def test_a_start_that_fails_leaves_no_coordinator() -> None:
    threads = threading.active_count()
    with pytest.raises(StartupError):
        connect(engine="faulty", options={"fault": "load:raise"}, num_engines=2, lockstep={})
    assert threading.active_count() == threads  # the fixture looks for processes


def test_engines_that_are_no_lockstep_engines_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not run in lockstep"):
        connect(engine="sim", num_engines=2, lockstep={})


def test_a_lockstep_engine_among_several_must_be_told_so() -> None:
    with pytest.raises(StartupError, match="--data-parallel-lockstep"):
        connect(engine="sim", options={"lockstep": True}, num_engines=2)


def test_a_single_engine_needs_no_coordinator() -> None:
    with connect(engine="sim", options={"lockstep": True}, lockstep={}) as client:
        assert client._link._shared.keeper is None  # type: ignore[attr-defined]
        assert generate(client, "a", 5) == 5
    with connect(engine="sim", num_engines=2) as client:
        assert client._link._shared.keeper is None  # type: ignore[attr-defined]


def test_ranks_elsewhere_join_the_group_and_end_it() -> None:
    port = free_port()
    where = {"host": "127.0.0.1", "handshake_port": port, "num_local_engines": 1}
    with engine_elsewhere(f"tcp://127.0.0.1:{port}", "sim", options=PACE, rank=1) as other:
        with lockstep(2, group={"timeout": 1.0}, **where) as client:
            for rank in (0, 1):
                assert generate(client, f"r{rank}", 40, rank) == 40
            stream = client.generate(ask("long", FOREVER))
            next(stream)
            os.kill(other.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                list(stream)
            with pytest.raises(EngineDeadError):
                for n in range(100):
                    generate(client, f"x{n}", 5, 0)


def test_fc40_a_rank_elsewhere_ends_with_its_front_end() -> None:
    port = free_port()
    where = {"host": "127.0.0.1", "handshake_port": port, "num_local_engines": 1}
    with engine_elsewhere(f"tcp://127.0.0.1:{port}", "sim", options=PACE, rank=1) as other:
        with lockstep(2, **where) as client:
            stream = client.generate(ask("long", FOREVER))
            next(stream)
        assert other.wait(20) == ExitCode.LOST_PARENT
