"""FC-23, FC-25, FC-45: many instances at one moment, every kind of address, and what an idle instance costs."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from muro import connect, connect_async
from tests.support.asking import ask
from tests.support.counts import count
from tests.support.programs import end, go, line, start

pytestmark = pytest.mark.cases

INSTANCE = """
import sys
from muro import connect
from tests.support.asking import ask
print("there", flush=True)
sys.stdin.readline()
with connect(engine="echo", host={host!r}) as client:
    print([token for output in client.generate(ask("a")) for token in output.new_token_ids], flush=True)
    sys.stdin.readline()
"""


@pytest.mark.timeout(600)
def test_fc23_many_instances_at_the_same_moment() -> None:
    """Half of them over TCP, half over ipc; all of them live at the same time."""
    for _ in range(count(1, 20)):
        programs = [start(INSTANCE.format(host=host)) for host in ("127.0.0.1", None) * count(3, 8)]
        try:
            assert {line(program) for program in programs} == {"there"}
            for program in programs:
                go(program)
            assert {line(program) for program in programs} == {"[7, 8, 9]"}
            for program in programs:
                go(program)
            done = [end(program, kill=False) for program in programs]
        finally:
            for program in programs:
                if program.returncode is None:
                    end(program)
        assert [(program.code, program.out, program.err) for program in done] == [(0, "", "")] * len(programs)


@pytest.mark.parametrize("host", ["::1", "localhost", "127.0.0.1"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_fc25_a_whole_client_over(host: str, kind: str) -> None:
    async def main() -> list[int]:
        async with await connect_async(engine="echo", host=host) as client:
            return [token async for output in client.generate(ask("a")) for token in output.new_token_ids]

    if kind == "async":
        assert asyncio.run(main()) == [7, 8, 9]
        return
    with connect(engine="echo", host=host) as client:
        assert [token for output in client.generate(ask("a")) for token in output.new_token_ids] == [7, 8, 9]
        assert client._link._doors.handshake_address.startswith("tcp://[::1]:") == (host == "::1")


SECONDS = count(2, 60)
"""How long nothing happens."""
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Idle:
    """Looks at processor time used by this process and an engine: at most 1 % of a core each may pass."""

    def __init__(self, engine: int | None) -> None:
        self._pids = {"client": os.getpid(), "engine": engine}
        self._before = self._used()

    def check(self) -> None:
        used = {name: after - self._before[name] for name, after in self._used().items()}
        print(f"\nused in {SECONDS} s:", ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in used.items()))
        assert max(used.values()) <= 0.01 * SECONDS + TICK / 2  # time is counted in ticks

    def _used(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}


def cpu_seconds(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


@pytest.mark.timeout(120)
def test_fc45_an_idle_client_for_threads_and_its_engine() -> None:
    with connect(engine="echo") as client:
        list(client.generate(ask("first")))
        idle = Idle(client.engines()[0].pid)
        threading.Event().wait(SECONDS)
        idle.check()
        began = time.monotonic()
        assert len(list(client.generate(ask("next")))) == 3
        assert time.monotonic() - began < 0.1  # a few ms, and what a busy machine adds


@pytest.mark.timeout(120)
def test_fc45_an_idle_asyncio_client_and_its_engine() -> None:
    async def main() -> None:
        async with await connect_async(engine="echo") as client:
            async for _ in client.generate(ask("first")):
                pass
            idle = Idle(client.engines()[0].pid)
            await asyncio.sleep(SECONDS)
            idle.check()
            began = time.monotonic()
            assert len([output async for output in client.generate(ask("next"))]) == 3
            assert time.monotonic() - began < 0.1

    asyncio.run(main())
