"""Engines from elsewhere that vanish: noticed within seconds, and their successors are let in."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from muro import EngineDeadError, SyncMPClient, connect
from muro.clients.sync_stream import SyncStream
from muro.config import RestartPolicy
from muro.transport.sockets import close, connect_dealer, connect_push, send_nowait
from muro.wire.frames import ENGINE_CORE_DEAD
from muro.wire.handshake import EngineHandshake
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port
from tests.support.fake_engine import RESPONSE
from tests.support.rawpeer import IDENTITY

SECONDS = 6.0
"""By then it has been noticed."""
AWAITED = RestartPolicy(policy="on-failure")


@contextlib.contextmanager
def joined(port: int, **settings: object) -> Iterator[SyncMPClient]:
    where = {"host": PORT_HOST, "handshake_port": port, "num_local_engines": 0, "startup_timeout": 20}
    with connect(**where, **settings) as client:
        yield client


def vanish(pid: int, how: str) -> None:
    os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)


def told(stream: SyncStream) -> EngineDeadError:
    with pytest.raises(EngineDeadError) as caught:
        list(stream)
    return caught.value


def announces_and_stays(address: str, leave: threading.Event) -> None:
    """A foreign engine that fails with its first request, and keeps its connections."""
    handshake = EngineHandshake(local=False, headless=True)
    greeter = connect_dealer(address, IDENTITY)
    assert greeter.poll(10_000, zmq.POLLOUT) and send_nowait(greeter, [handshake.hello()])
    init = handshake.receive(greeter.recv())
    inputs = connect_dealer(init.addresses.inputs[0], IDENTITY)
    outputs = connect_push(init.addresses.outputs[0])
    assert send_nowait(inputs, [RESPONSE.encode()]) and send_nowait(greeter, [handshake.ready()])
    assert inputs.poll(10_000)
    outputs.send(ENGINE_CORE_DEAD)
    leave.wait(60)
    for socket in (greeter, inputs, outputs):
        close(socket, 0)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_an_engine_that_vanishes_is_noticed(how: str) -> None:
    port = free_port()
    with engine_elsewhere(f"tcp://{PORT_HOST}:{port}") as engine, joined(port) as client:
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        vanish(engine.pid, how)
        began = time.monotonic()
        error = told(stream)
        took = time.monotonic() - began
        print(f"\nengine {how}: callers told after {took:.2f} s")
        assert took < SECONDS
        assert "its connection has ended" in error.message and not error.restarting and error.rank == 0
        with pytest.raises(EngineDeadError, match="its connection has ended"):
            client.check_health()


def test_an_idle_client_notices_too() -> None:
    port = free_port()
    with engine_elsewhere(f"tcp://{PORT_HOST}:{port}") as engine, joined(port) as client:
        vanish(engine.pid, "stopped")

        def health() -> EngineDeadError | None:
            try:
                client.check_health()
            except EngineDeadError as error:
                return error
            return None

        assert "its connection has ended" in until(health, within=SECONDS).message


def test_a_successor_that_dials_is_let_in() -> None:
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    with contextlib.ExitStack() as engines:
        engine = engines.enter_context(engine_elsewhere(address))
        client = engines.enter_context(joined(port, restart=AWAITED))
        for generation in range(4):
            stream = client.generate(ask("a", FOREVER))
            next(stream)
            assert client.call("num_live") == 1
            [status] = client.engines()
            assert (status.generation, status.state) == (generation, "serving")
            vanish(engine.pid, "killed")
            error = told(stream)
            assert error.restarting and error.retry_after and error.generation == generation
            engine = engines.enter_context(engine_elsewhere(address))
            client.wait_serving(timeout=20)


def test_whoever_asks_as_it_vanishes_is_told_that_there_will_be_another() -> None:
    port = free_port()
    with contextlib.ExitStack() as engines:
        client: SyncMPClient | None = None
        for generation in range(6):
            engine = engines.enter_context(engine_elsewhere(f"tcp://{PORT_HOST}:{port}"))
            client = client or engines.enter_context(joined(port, restart=AWAITED))
            client.wait_serving(timeout=20)
            vanish(engine.pid, "killed")
            streams: list[SyncStream] = []
            with pytest.raises(EngineDeadError) as caught:
                streams.extend(client.generate(ask(f"{generation}-{number}", 1)) for number in range(FOREVER))
            assert caught.value.restarting, caught.value
            for stream in streams:
                stream.close()


def test_an_engine_that_was_stopped_for_a_while_joins_again() -> None:
    """With its weights, if it may; what it was asked before is forgotten on both sides."""
    port = free_port()
    with (
        engine_elsewhere(f"tcp://{PORT_HOST}:{port}", rejoin=True) as engine,
        joined(port, restart=AWAITED) as client,
    ):
        streams = [client.generate(ask(f"s{n}", FOREVER)) for n in range(4)]
        for stream in streams:
            next(stream)
        vanish(engine.pid, "stopped")
        assert all(told(stream).restarting for stream in streams)
        os.kill(engine.pid, signal.SIGCONT)
        client.wait_serving(timeout=20)
        assert [t for o in client.generate(ask("b")) for t in o.new_token_ids] == [7, 8, 9]
        assert client.call("num_live") == 0 and engine.poll() is None


def test_an_announced_death_is_followed_by_its_successor() -> None:
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    with engine_elsewhere(address, options={"step_ms": 1}) as engine, joined(port, restart=AWAITED) as client:
        stream = client.generate(ask("a", FOREVER, extra_args={"fault": "step:raise"}))
        error = told(stream)
        assert error.restarting and "announced" in error.message
        assert engine.wait(10) == 10
        with engine_elsewhere(address):
            client.wait_serving(timeout=20)
            assert [t for o in client.generate(ask("b")) for t in o.new_token_ids] == [7, 8, 9]


def test_an_announced_death_needs_no_end_of_its_connection() -> None:
    """Of the only engine: whose else should it be? Some hang when they have failed."""
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    leave = threading.Event()
    foreign = threading.Thread(target=announces_and_stays, args=(address, leave))
    foreign.start()
    try:
        with joined(port, restart=AWAITED) as client:
            error = told(client.generate(ask("a", FOREVER)))
            assert error.restarting and "announced" in error.message
            with engine_elsewhere(address):
                client.wait_serving(timeout=20)
                assert [t for o in client.generate(ask("b")) for t in o.new_token_ids] == [7, 8, 9]
    finally:
        leave.set()
        foreign.join()


def test_an_engine_that_goes_while_it_loads_is_waited_for_anew() -> None:
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    slow = {"step_ms": 1, "fault": "loading:sleep=30"}
    with contextlib.ExitStack() as stack:
        seen: list[str] = []

        def on_progress(news: object) -> None:
            words = news.sight.waiting_for  # type: ignore[attr-defined]
            if "INIT was sent" in words and len(seen) == 0:
                os.kill(first.pid, signal.SIGKILL)
            if "no HELLO" in words and any("INIT was sent" in word for word in seen):
                stack.enter_context(engine_elsewhere(address))
            seen.append(words) if seen or "INIT was sent" in words else None

        first = stack.enter_context(engine_elsewhere(address, options=slow))
        where = {"host": PORT_HOST, "handshake_port": port, "num_local_engines": 0, "startup_timeout": 20}
        with connect(**where, on_progress=on_progress) as client:
            assert [t for o in client.generate(ask("b")) for t in o.new_token_ids] == [7, 8, 9]


def test_a_successor_that_goes_before_it_is_ready_does_not_keep_others_out() -> None:
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    with engine_elsewhere(address) as engine, joined(port, restart=AWAITED) as client:
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        vanish(engine.pid, "killed")
        told(stream)
        for words in ([EngineHandshake(local=False, headless=True).hello()], [b"\xc1"], [b"", b"x"], []):
            visitor = connect_dealer(address, IDENTITY, linger_ms=200)
            assert not words or send_nowait(visitor, list(words))
            visitor.poll(500)
            close(visitor)
        with engine_elsewhere(address):
            client.wait_serving(timeout=20)
            assert [t for o in client.generate(ask("b")) for t in o.new_token_ids] == [7, 8, 9]
