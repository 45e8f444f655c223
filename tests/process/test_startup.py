"""Start-up against fake engines in real processes: who is missing, who failed, and nothing survives a failure."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muro.config import ConnectConfig, EngineConfig
from muro.errors import ConfigError, StartupError
from muro.ids import EngineRank
from muro.launch.events import EngineDied, EngineGivenUp, Event
from muro.launch.plan import LaunchPlan, plan_launch
from muro.launch.shutdown import stop
from muro.launch.startup import Started, StartupProgress, start
from muro.launch.supervisor import Supervisor
from muro.transport.sockets import Socket, bind_pull, bind_router, close, connect_dealer, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses, EngineHandshake
from tests.support.counts import count
from tests.support.deadline import until
from tests.support.fake_engine import RESPONSE, TARGET

FIRST, SECOND = EngineRank(0), EngineRank(1)


class Front:
    """The sockets that a start is lent, and the plans that fit them."""

    def __init__(self, directory: Path) -> None:
        names = [f"ipc://{directory}/{role}" for role in "hio"]
        self.handshake = bind_router(names[0])
        self.inputs = bind_router(names[1])
        self.outputs = bind_pull(names[2])
        self.handshake_address, self.input_address, self.output_address = names

    def plan(self, **changes: Any) -> LaunchPlan:
        options = changes.pop("options", {})
        config = ConnectConfig(
            engine=EngineConfig(engine="fake", options=options), **{"startup_timeout": 30.0} | changes
        )
        plan = plan_launch(config, Addresses([self.input_address], [self.output_address]), self.handshake_address)
        return msgspec.structs.replace(plan, target=TARGET)

    def start(self, plan: LaunchPlan, **more: Any) -> Started:
        return start(plan, self.handshake, self.inputs, **more)

    def fails(self, within: float = 5.0, **changes: Any) -> StartupError:
        """The error of a start that must fail within so many seconds."""
        began = time.monotonic()
        with pytest.raises(StartupError) as caught:
            self.start(self.plan(**changes))
        assert time.monotonic() - began < within
        return caught.value

    def close(self) -> None:
        for socket in (self.handshake, self.inputs, self.outputs):
            close(socket)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    yield front
    front.close()


def at(phase: str, action: str, rank: int | None = None) -> dict[str, Any]:
    return {"at": {phase: action}} | ({} if rank is None else {"rank": rank})


def test_two_engines_start_and_stop(front: Front) -> None:
    news: list[StartupProgress] = []
    started = front.start(front.plan(num_engines=2), on_progress=news.append)
    assert started.responses == {FIRST: RESPONSE, SECOND: RESPONSE}
    assert [child.poll() for child in started.children.values()] == [None, None]
    assert stop(started.children.values(), 10) == [0, 0]
    assert {item.rank for item in news} == {0, 1}


@pytest.mark.cases
@pytest.mark.parametrize("phase", ["greeting", "loading"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_killed_engine_is_named_with_its_cause(front: Front, phase: str, number: signal.Signals) -> None:
    for _ in range(count(1, 50)):
        error = front.fails(options=at(phase, f"die {int(number)}"))
        assert str(error).startswith(f"engine 0 (fake) did not start: it was killed by {number.name}")
        assert f"in phase '{phase}'" in str(error)
        assert f"pid {error.pid}" in str(error)
        assert "about to die" in error.log_tail
        assert ("memory" in str(error)) == (number == signal.SIGKILL)
        assert (error.rank, error.phase, error.exit_status) == (0, phase, -number)


@pytest.mark.cases
@pytest.mark.parametrize("code", [0, 7])
def test_an_engine_that_exits(front: Front, code: int) -> None:
    error = front.fails(options=at("loading", f"exit {code}"))
    assert f"exit code {code}" in str(error)
    assert error.exit_status == code


@pytest.mark.cases
@pytest.mark.parametrize("phase", ["greeting", "loading"])
def test_an_engine_that_raises_is_quoted(front: Front, phase: str) -> None:
    error = front.fails(options=at(phase, "raise no such weights"))
    assert "Cause: RuntimeError: no such weights" in str(error)
    assert error.exit_status == 10


@pytest.mark.cases
def test_an_engine_that_fails_and_hangs_in_its_clean_up(front: Front) -> None:
    error = front.fails(options=at("loading", "report_and_hang no such weights"))
    assert "it failed in phase 'loading'" in str(error)
    assert "Cause: RuntimeError: no such weights" in str(error)
    assert error.exit_status is None


@pytest.mark.cases
@pytest.mark.parametrize(
    ("options", "stage"),
    [
        (at("greeting", "hang"), "phase 'greeting', 0 %; handshake: no HELLO yet"),
        (at("loading", "hang"), "phase 'loading', 0 %; handshake: INIT was sent; loading, no READY yet"),
        ({"no_response": True}, "handshake: READY, but its ready response has not come"),
        ({"ready_times": 0}, "handshake: INIT was sent; loading, no READY yet"),
    ],
)
def test_a_silent_engine_is_given_up(front: Front, options: dict[str, Any], stage: str) -> None:
    error = front.fails(options=options, startup_timeout=1.0, within=10.0)
    assert "engine 0 (fake) did not start: no progress for 1 s (setting: startup_timeout)" in str(error)
    assert stage in str(error)
    assert "most recent call first" in error.log_tail  # where it stands
    assert error.exit_status is None
    assert error.pid is not None


@pytest.mark.cases
def test_a_slow_engine_that_shows_progress_is_not_cut(front: Front) -> None:
    news: list[StartupProgress] = []
    plan = front.plan(options=at("loading", "crawl 9"), startup_timeout=1.0)
    began = time.monotonic()
    started = front.start(plan, on_progress=news.append)
    assert time.monotonic() - began > 2.0
    assert stop(started.children.values(), 10) == [0]
    crawling = [item.sight.percent for item in news if item.sight.phase == "crawling"]
    assert crawling == sorted(crawling)
    assert len(crawling) >= 5


@pytest.mark.cases
def test_a_wrong_identity_is_refused_and_told(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    error = front.fails(options={"identity": 9}, startup_timeout=1.0, within=10.0)
    assert "no HELLO yet" in str(error)
    assert "refused meanwhile: engine 9 is not expected here" in str(error)
    assert "refused 1 words while engines start; the last: engine 9 is not expected here; expected: 0" in caplog.text


@pytest.mark.cases
def test_ready_twice_breaks_the_handshake(front: Front) -> None:
    error = front.fails(options={"ready_times": 2, "no_response": True})
    assert "it broke the handshake: engine 0 said READY out of turn" in str(error)


def test_a_spawned_engine_must_say_that_it_is_local(front: Front) -> None:
    error = front.fails(options={"local": False})
    assert "it broke the handshake: engine 0 says local=False" in str(error)


def test_one_failure_takes_all_down(front: Front) -> None:
    error = front.fails(num_engines=2, options=at("loading", "die 9", rank=1))
    assert (error.rank, error.exit_status) == (1, -9)
    assert "engine 1 (fake)" in str(error)


def test_an_engine_elsewhere_that_never_comes(front: Front) -> None:
    error = front.fails(num_local_engines=0, startup_timeout=0.5)
    assert "engine 0 (started elsewhere) did not start: no progress for 0.5 s" in str(error)
    assert f"it must dial {front.handshake_address}" in str(error)
    assert (error.rank, error.pid) == (0, None)


def test_an_engine_elsewhere_joins(front: Front) -> None:
    joined = threading.Thread(target=_join_from_elsewhere, args=(front, SECOND))
    joined.start()
    started = front.start(front.plan(num_engines=2, num_local_engines=1))
    joined.join()
    assert list(started.children) == [FIRST]
    assert sorted(started.responses) == [FIRST, SECOND]
    assert stop(started.children.values(), 10) == [0]


def _join_from_elsewhere(front: Front, rank: EngineRank) -> None:
    handshake = EngineHandshake(local=False, headless=True)
    socket = connect_dealer(front.handshake_address, identity_of(rank))
    send_nowait(socket, [handshake.hello()])
    init = handshake.receive(until(lambda: _peek(socket)))
    inputs = connect_dealer(init.addresses.inputs[0], identity_of(rank))
    send_nowait(inputs, [RESPONSE.encode()])
    send_nowait(socket, [handshake.ready()])
    close(inputs, 5000)
    close(socket, 5000)


def _peek(socket: Socket) -> bytes:
    return socket.recv() if socket.poll(0) else b""


def test_missing_engines_are_named_again_and_again(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    """Time runs a hundred times as fast."""
    began = time.monotonic()

    def clock() -> float:
        return began + 100 * (time.monotonic() - began)

    told: Counter[EngineRank] = Counter()
    with Wakeup() as cancel:

        def news(item: StartupProgress) -> None:
            told[item.rank] += 1
            if min(told[rank] for rank in (FIRST, SECOND)) == 3:
                cancel.set()

        plan = front.plan(num_engines=2, num_local_engines=0, startup_timeout=1000.0)
        with pytest.raises(StartupError, match="cancelled"):
            front.start(plan, on_progress=news, cancel=cancel, clock=clock)
    assert told[FIRST] == told[SECOND] == 3 and not caplog.records
    with pytest.raises(StartupError, match="no progress"):
        front.start(msgspec.structs.replace(plan, startup_timeout=60.0), clock=clock)
    said = [record.message for record in caplog.records if "2 of 2 engines are missing" in record.message]
    assert len(said) >= 2 and f"must dial {plan.handshake_address}" in said[0]
    assert "engine 1 (started elsewhere): handshake: no HELLO yet" in said[0]


def test_a_start_can_be_cancelled_from_another_thread(front: Front) -> None:
    with Wakeup() as cancel:
        seen = threading.Event()

        def news(item: StartupProgress) -> None:
            if item.sight.phase == "loading":
                seen.set()

        def cancel_later() -> None:
            seen.wait(20)
            cancel.set()

        canceller = threading.Thread(target=cancel_later)
        canceller.start()
        with pytest.raises(StartupError, match="cancelled"):
            front.start(front.plan(options=at("loading", "hang")), on_progress=news, cancel=cancel)
        canceller.join()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_start_leaves_nothing(front: Front, error: type[BaseException]) -> None:
    def news(item: StartupProgress) -> None:
        raise error

    with pytest.raises(error):
        front.start(front.plan(num_engines=2), on_progress=news)


def test_settings_that_cannot_travel(front: Front) -> None:
    with pytest.raises(ConfigError, match=r"the options of engine 0 \(fake\) must be plain JSON"):
        front.start(front.plan(options={"device": object()}))


@pytest.mark.cases
def test_deaths_after_the_start_are_events(front: Front) -> None:
    started = front.start(front.plan(num_engines=2))
    events: list[Event] = []
    supervisor = Supervisor(started.children)
    supervisor.subscribe(events.append)
    supervisor.open().look()
    assert events == []
    os.kill(started.children[SECOND].pid, signal.SIGKILL)
    until(lambda: len(events) == 2)  # its own thread tells
    died, given_up = events
    assert isinstance(died, EngineDied) and isinstance(given_up, EngineGivenUp)
    assert (died.rank, died.generation, died.error.exit_status, died.restarting) == (SECOND, 0, -9, False)
    assert str(died.error).startswith("engine 1 (fake) has died: it was killed by SIGKILL")
    assert given_up.error is died.error
    os.kill(started.children[FIRST].pid, signal.SIGKILL)
    supervisor.wait_end(FIRST, 10)
    assert [event.rank for event in events] == [SECOND, SECOND, FIRST, FIRST]
    supervisor.stop(10)
    assert [child.poll() for child in started.children.values()] == [-9, -9]
