"""FC-02: an engine that was started elsewhere has no progress page; it is judged by what is heard of it."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from muro import EngineDeadError, connect, connect_async
from muro.launch.events import EngineDied
from muro.wire.ops import PAUSE_SCHEDULER, RESUME_SCHEDULER
from tests.support.asking import FOREVER, ask
from tests.support.counts import count
from tests.support.elsewhere import free_port
from tests.support.stalls import LIMIT, SLACK, Witness, stalls_within

pytestmark = [pytest.mark.cases, pytest.mark.timeout(count(60, 240))]

ELSEWHERE = """
import sys
from muro.config import EngineConfig
from muro.process.main import run_headless
where = {"local": False, "headless": True, "handshake_address": sys.argv[1]}
sys.exit(run_headless(EngineConfig(engine="faulty", options={"step_ms": 5}, **where)))
"""


@contextlib.contextmanager
def engine_elsewhere() -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """An engine that dials in, and the settings with which it is waited for."""
    port = free_port()
    command = [sys.executable, "-c", ELSEWHERE, f"tcp://127.0.0.1:{port}"]
    engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield engine, {"host": "127.0.0.1", "handshake_port": port, "num_local_engines": 0, "stall_limit": LIMIT}
    finally:
        engine.kill()
        engine.wait()


@pytest.mark.parametrize("harm", ["step:hang_lock", "step:barren", "SIGSTOP"])
def test_an_engine_elsewhere_that_falls_silent(harm: str) -> None:
    with engine_elsewhere() as (engine, where), connect(**where) as client:
        witness = Witness(client)
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        if harm == "SIGSTOP":
            engine.send_signal(signal.SIGSTOP)
        else:
            client.call("inject", harm)
        began = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"started elsewhere.*nothing was heard of it for"):
            for _ in stream:
                pass
        took = time.monotonic() - began
        print(f"\nelsewhere, {harm}: limit {LIMIT} s, told after {took:.2f} s")
        assert LIMIT <= took <= LIMIT + SLACK
        assert [event.rank for _, event in witness.of(EngineDied)] == [0]


async def _elsewhere_async(harm: str) -> float:
    with engine_elsewhere() as (_, where):
        async with await connect_async(**where) as client:
            stream = client.generate(ask("a", FOREVER))
            await anext(stream)
            await client.call("inject", harm)
            threading.Event().wait(2 * LIMIT)  # a loop that is blocked hears nothing, and must judge nobody
            client.check_health()
            began = time.monotonic()
            with pytest.raises(EngineDeadError, match="started elsewhere"):
                async for _ in stream:
                    pass
            return time.monotonic() - began


def test_an_engine_elsewhere_that_falls_silent_for_asyncio() -> None:
    took = asyncio.run(_elsewhere_async("step:hang"))
    assert LIMIT - 0.6 <= took <= LIMIT + SLACK


def test_an_engine_elsewhere_that_is_idle_slow_or_paused() -> None:
    with engine_elsewhere() as (_, where), connect(**where) as client:
        witness = Witness(client)
        client.call("inject", f"step:sleep={0.7 * LIMIT}")
        stream = client.generate(ask("a", 100))
        next(stream)
        client.call(PAUSE_SCHEDULER, "keep", False)
        reader = threading.Thread(target=list, args=(stream,))
        reader.start()  # somebody listens all the time
        assert not stalls_within(2 * LIMIT, witness)
        client.call(RESUME_SCHEDULER)
        reader.join(10)
        assert not reader.is_alive() and not witness.heard
        assert len(list(client.generate(ask("b")))) == 3
