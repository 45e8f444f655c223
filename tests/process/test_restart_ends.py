"""Where restarts end: crash loops, starts that fail, what no restart can help, and clients that go meanwhile."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from muro import AsyncMPClient, EngineDeadError, SyncMPClient, connect, connect_async
from muro.config import RestartPolicy
from muro.errors import ClientClosedError, CrashLoopError
from muro.ids import EngineRank
from muro.launch.events import EngineDied, EngineGivenUp, Event
from tests.support.asking import FOREVER, ask
from tests.support.counts import count
from tests.support.deadline import process_ended, until
from tests.support.harm import kill
from tests.support.restarts import children, moody, settings

pytestmark = pytest.mark.cases


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_crash_loop_ends(kind: str) -> None:
    policy = RestartPolicy(policy="on-failure", backoff_first=0.01, budget=2, window=60)

    def check(error: CrashLoopError) -> None:
        assert "died 3 times within 60 s; the restart budget is exhausted" in str(error) and "SIGKILL" in str(error)
        assert (error.generation, error.restarting, error.retry_after) == (2, False, None)

    async def main() -> None:
        async with await connect_async(settings(policy)) as client:
            for turn in range(3):
                kill(client.engines()[0].pid)
                with pytest.raises(EngineDeadError):
                    async for _ in client.generate(ask("a", FOREVER)):
                        pass
                if turn < 2:
                    await client.wait_serving(20)
                else:
                    with pytest.raises(CrashLoopError):
                        await client.wait_serving(20)
            with pytest.raises(CrashLoopError) as caught:
                client.generate(ask("late"))
            check(caught.value)

    if kind == "async":
        asyncio.run(main())
        return

    def wait_for_batches(client: SyncMPClient) -> None:
        with pytest.raises(CrashLoopError):
            client.get_outputs()

    with connect(settings(policy)) as client:
        waiting = threading.Thread(target=wait_for_batches, args=(client,))
        for turn in range(3):
            kill(client.engines()[0].pid)
            until(lambda turn=turn: client.engines()[0].state in (["restarting", "serving"], ["dead"])[turn == 2])
            if turn < 2:
                until(lambda turn=turn: client.engines()[0].generation == turn + 1)
            if turn == 1:
                waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()
        with pytest.raises(CrashLoopError) as caught:
            client.check_health()
        check(caught.value)
        assert client.engines()[0].state == "dead"


def test_a_successor_that_does_not_start_counts_and_is_tried_again(tmp_path: Path) -> None:
    with connect(moody(tmp_path, "fine", "raise", "exit=7", "fine")) as client:
        events: list[Event] = []
        client._link.supervisor.subscribe(events.append)  # type: ignore[attr-defined]
        kill(client.engines()[0].pid)
        until(lambda: client.engines()[0].generation == 3, within=30)
        deaths = [event for event in events if isinstance(event, EngineDied)]
        assert [event.generation for event in deaths] == [0, 1, 2]
        assert "not in the mood" in str(deaths[1].error) and deaths[1].error.phase.startswith("loading")
        assert deaths[2].error.exit_status == 7 and all(event.restarting for event in deaths)
        assert list(client.generate(ask("a")))
        assert (client.engines()[0].restarts, client.engines()[0].state) == (3, "serving")


def test_a_successor_that_never_starts_is_a_crash_loop(tmp_path: Path) -> None:
    policy = RestartPolicy(policy="always", backoff_first=0.01, budget=2, window=60)
    with connect(moody(tmp_path, "fine", *["raise"] * 9, restart=policy)) as client:
        kill(client.engines()[0].pid)
        until(lambda: client.engines()[0].state == "restarting")
        with pytest.raises(CrashLoopError, match="not in the mood") as caught:
            client.wait_serving(30)
        assert caught.value.generation == 2


@pytest.mark.parametrize(("how", "told"), [("exit=0", "exit code is 0"), ("exit=2", "settings are wrong")])
def test_what_no_restart_can_help_is_not_restarted(how: str, told: str) -> None:
    with connect(settings()) as client:
        events: list[Event] = []
        client._link.supervisor.subscribe(events.append)  # type: ignore[attr-defined]
        with pytest.raises(EngineDeadError) as caught:
            client.call("inject", f"operation:{how}")
        assert not caught.value.restarting
        assert isinstance(events[-1], EngineGivenUp)
        with pytest.raises(EngineDeadError):
            client.wait_serving()


def starting_pid(before: set[int]) -> int:
    """A child of ours that was not there before."""
    return until(lambda: next(iter(children() - before), 0), within=20)


def test_a_kill_during_the_restart(tmp_path: Path) -> None:
    with connect(moody(tmp_path, "fine", "hang", "fine")) as client:
        first = client.engines()[0].pid
        kill(first)
        until(lambda: client.engines()[0].progress.phase.startswith("loading"), within=20)
        status = client.engines()[0]
        assert (status.state, status.restarts, status.generation, status.pid) == ("restarting", 1, 0, None)
        kill(starting_pid({first or 0}))
        client.wait_serving(30)
        until(lambda: client.engines()[0].generation == 2, within=20)


@pytest.mark.parametrize("when", ["backing off", "starting"])
@pytest.mark.parametrize("how", ["close", "drop", "aclose", "adrop"])
def test_closing_during_a_restart_is_bounded_and_clean(tmp_path: Path, when: str, how: str) -> None:
    config = moody(tmp_path, "fine", "hang")
    if when == "backing off":
        config = settings(RestartPolicy(policy="always", backoff_first=60, backoff_max=60))

    def bereave(client: SyncMPClient | AsyncMPClient) -> None:
        supervisor = client._link.supervisor
        kill(client.engines()[0].pid)
        until(lambda: supervisor.status(EngineRank(0)).state.value == when)
        if when == "starting":
            until(lambda: supervisor.status(EngineRank(0)).progress.phase.startswith("loading"), within=20)

    async def main() -> float:
        client = await connect_async(config)
        bereave(client)
        began = time.monotonic()
        if how == "aclose":
            await client.aclose()
        del client
        gc.collect()
        return began

    if how in ("aclose", "adrop"):
        began = asyncio.run(main())
    else:
        client = connect(config)
        bereave(client)
        began = time.monotonic()
        if how == "close":
            with pytest.raises(ClientClosedError):
                client.close()
                client.wait_serving()
        del client
        gc.collect()
    assert time.monotonic() - began < 3
    until(lambda: not children())


SCRIPT = """
import os, signal
from muro import connect
from muro.config import RestartPolicy
client = connect(engine="echo", restart=RestartPolicy(policy="always"))
pid = client.engines()[0].pid
os.kill(pid, signal.SIGKILL)
while client.engines()[0].state != "restarting": pass
print(pid, flush=True)
"""


@pytest.mark.parametrize("last", ["", "import time; time.sleep(0.2)", "raise SystemExit(3)"])
def test_a_program_that_ends_during_a_restart_is_quiet(last: str) -> None:
    for _ in range(count(1, 30)):
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT + last], capture_output=True, text=True, timeout=30, check=False
        )
        assert ended.returncode == (3 if "3" in last and "Exit" in last else 0)
        assert "Traceback" not in ended.stderr and "Error" not in ended.stderr
        process_ended(int(ended.stdout), within=1)


def test_an_engine_that_announces_its_death_and_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muro.launch.supervisor.ENDING_TIMEOUT", 0.5)
    with connect(settings()) as client:
        first = client.engines()[0].pid
        client.call("inject", "shutdown:hang_lock")
        client.call("inject", "step:raise")
        with pytest.raises(EngineDeadError, match="FaultError") as caught:
            list(client.generate(ask("victim")))
        assert caught.value.exit_status is None and caught.value.restarting
        client.wait_serving(20)
        process_ended(first or 0, within=0.1)
        assert list(client.generate(ask("a")))
