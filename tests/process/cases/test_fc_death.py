"""FC-01, FC-04, FC-06, FC-21, FC-22: the engine dies, and every caller of every client hears of it, with the cause.

`pytest -s` shows how long it took.
"""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from muro import AsyncMPClient, EngineDeadError, StartupError, SyncMPClient, connect, connect_async
from tests.support.asking import FOREVER, ask
from tests.support.counts import count
from tests.support.deadline import until, until_async
from tests.support.harm import HARMS, Harm, kill

WITHIN = 2.0
"""Seconds after a death by which every caller must know."""

pytestmark = pytest.mark.cases


class Watch:
    """Takes the time from the harm to each error, and checks what the errors say."""

    def __init__(self, harm: Harm, name: str) -> None:
        self._harm = harm
        self._name = name
        self._began = 0.0
        self.heard: list[tuple[str, float, BaseException]] = []

    def begin(self) -> None:
        self._began = time.monotonic()

    def hear(self, who: str, error: BaseException) -> None:
        self.heard.append((who, time.monotonic() - self._began, error))

    def check(self, *callers: str) -> None:
        print(f"\n{self._name}:", ", ".join(f"{who} {took * 1000:.0f} ms" for who, took, _ in self.heard))
        assert sorted(who for who, _, _ in self.heard) == sorted(callers)
        for who, took, error in self.heard:
            assert isinstance(error, EngineDeadError), (who, error)
            assert self._harm.told in str(error)
            assert "engine 0 (faulty)" in str(error) and f"pid {error.pid}" in str(error)
            assert error.rank == 0 and error.generation == 0 and error.phase
            assert error.exit_status == self._harm.status or (self._harm.announced and error.exit_status is None)
            assert took < WITHIN, who


@pytest.mark.parametrize("name", HARMS)
def test_fc01_fc04_idle_client_for_threads(name: str) -> None:
    watch = Watch(HARMS[name], f"idle, sync, {name}")
    with connect(engine="faulty") as client:
        watch.begin()
        provoke(client, HARMS[name], watch)
        until(lambda: check_heard(client, watch), within=WITHIN)
        for use in (lambda: client.generate(ask("late")), lambda: client.call("num_live")):
            with pytest.raises(EngineDeadError, match=HARMS[name].told):
                use()
        assert client.engines()[0].state == "dead"
    watch.check(*["injector"] * (watch.heard[0][0] == "injector"), "health")


@pytest.mark.parametrize("name", HARMS)
def test_fc01_fc04_streams_and_calls_of_threads(name: str) -> None:
    watch = Watch(HARMS[name], f"streaming, sync, {name}")
    with connect(engine="faulty", options={"step_ms": 2}) as client:
        streams = [client.generate(ask(f"r{number}", FOREVER)) for number in range(4)]
        for stream in streams:
            next(stream)
        threads = [threading.Thread(target=read, args=(stream, watch)) for stream in streams[:3]]
        threads.append(threading.Thread(target=keep_calling, args=(client, watch)))
        for thread in threads:
            thread.start()
        watch.begin()
        provoke(client, HARMS[name], watch)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        read(streams[3], watch)  # nobody waited for this one
        assert client.engines()[0].in_flight == 0
    injector = [who for who, _, _ in watch.heard if who == "injector"]
    watch.check(*injector, *["reader"] * 4, "caller")


def provoke(client: SyncMPClient, harm: Harm, watch: Watch) -> None:
    if not harm.fault:
        kill(client.engines()[0].pid)
        return
    try:
        client.call("inject", harm.fault)
        if not client.engines()[0].in_flight:  # some faults need something to do
            list(client.generate(ask("victim")))
    except EngineDeadError as error:
        watch.hear("injector", error)


def check_heard(client: SyncMPClient | AsyncMPClient, watch: Watch) -> bool:
    try:
        client.check_health()
    except EngineDeadError as error:
        watch.hear("health", error)
        return True
    return False


def read(stream: object, watch: Watch) -> None:
    try:
        for _ in stream:  # type: ignore[attr-defined]
            pass
    except EngineDeadError as error:
        watch.hear("reader", error)


def keep_calling(client: SyncMPClient, watch: Watch) -> None:
    try:
        while True:
            client.call("num_live")
    except EngineDeadError as error:
        watch.hear("caller", error)


async def _idle_async(name: str) -> None:
    watch = Watch(HARMS[name], f"idle, asyncio, {name}")
    async with await connect_async(engine="faulty") as client:
        watch.begin()
        await provoke_async(client, HARMS[name], watch)
        await until_async(lambda: check_heard(client, watch), within=WITHIN)
        with pytest.raises(EngineDeadError, match=HARMS[name].told):
            client.generate(ask("late"))
        with pytest.raises(EngineDeadError, match=HARMS[name].told):
            await client.call("num_live")
    watch.check(*["injector"] * (watch.heard[0][0] == "injector"), "health")


async def _streaming_async(name: str) -> None:
    watch = Watch(HARMS[name], f"streaming, asyncio, {name}")
    async with await connect_async(engine="faulty", options={"step_ms": 2}) as client:
        streams = [client.generate(ask(f"r{number}", FOREVER)) for number in range(4)]
        for stream in streams:
            await anext(stream)
        tasks = [asyncio.create_task(read_async(stream, watch)) for stream in streams[:3]]
        tasks.append(asyncio.create_task(keep_calling_async(client, watch)))
        await asyncio.sleep(0)  # they wait now
        watch.begin()
        await provoke_async(client, HARMS[name], watch)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        await read_async(streams[3], watch)
        assert client.engines()[0].in_flight == 0
        assert len(asyncio.all_tasks()) == 1
    injector = [who for who, _, _ in watch.heard if who == "injector"]
    watch.check(*injector, *["reader"] * 4, "caller")


@pytest.mark.parametrize("name", HARMS)
@pytest.mark.parametrize("situation", [_idle_async, _streaming_async], ids=["idle", "streaming"])
def test_fc01_fc04_asyncio_client(situation: Callable[[str], object], name: str) -> None:
    asyncio.run(situation(name))  # type: ignore[arg-type]


async def provoke_async(client: AsyncMPClient, harm: Harm, watch: Watch) -> None:
    if not harm.fault:
        kill(client.engines()[0].pid)
        return
    try:
        await client.call("inject", harm.fault)
        if not client.engines()[0].in_flight:
            async for _ in client.generate(ask("victim")):
                pass
    except EngineDeadError as error:
        watch.hear("injector", error)


async def read_async(stream: object, watch: Watch) -> None:
    try:
        async for _ in stream:  # type: ignore[attr-defined]
            pass
    except EngineDeadError as error:
        watch.hear("reader", error)


async def keep_calling_async(client: AsyncMPClient, watch: Watch) -> None:
    try:
        while True:
            await client.call("num_live")
    except EngineDeadError as error:
        watch.hear("caller", error)


LOADING = {
    "SIGKILL": ("loading:signal=SIGKILL", "killed by SIGKILL (the kernel kills so when memory runs out"),
    "SIGSEGV": ("loading:signal=SIGSEGV", "killed by SIGSEGV"),
    "SIGABRT": ("loading:signal=SIGABRT", "killed by SIGABRT"),
    "exit 7": ("loading:exit=7", "exit code 7"),
    "exit 0": ("loading:exit=0", "exit code 0 although nobody had asked"),
    "raise": ("loading:raise", "Cause: FaultError: a fault was asked for in loading"),
    "raise early": ("construct:raise", "Cause: FaultError: a fault was asked for in construct"),
}


@pytest.mark.parametrize("name", LOADING)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_fc04_fc21_fc22_while_loading(kind: str, name: str) -> None:
    """The start ends at once, quotes the engine, and leaves nothing."""
    fault, told = LOADING[name]
    reached = [0.0]

    def news(item: object) -> None:
        reached[0] = time.monotonic()  # the last one is of the phase that fails

    settings = {"engine": "faulty", "options": {"fault": fault}, "on_progress": news}
    for _ in range(count(1, 50)):
        with pytest.raises(StartupError) as caught:
            connect(**settings) if kind == "sync" else asyncio.run(connect_async(**settings))
        took = time.monotonic() - reached[0]
        assert took < WITHIN
        error = caught.value
        assert told in str(error) and "engine 0 (faulty) did not start" in str(error)
        assert f"pid {error.pid}" in str(error) and error.phase.startswith("loading")
        assert "Last lines of its log" in str(error) or "It wrote no log" in str(error)
    print(f"\nloading, {kind}, {name}: {took * 1000:.0f} ms after the last progress")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_fc21_a_failed_start_does_not_wait_for_a_clean_up_that_hangs(kind: str) -> None:
    settings = {"engine": "tests.support.engines:HangsInCleanUp"}
    began = time.monotonic()
    with pytest.raises(StartupError, match="no block fits"):
        connect(**settings) if kind == "sync" else asyncio.run(connect_async(**settings))
    assert time.monotonic() - began < WITHIN + 3  # 3 s for an interpreter to start on a busy machine
