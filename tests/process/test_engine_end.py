"""How an engine process ends: by a signal, by a failure, and what its clients are told before it is gone."""

import json
import os
import signal
import time
from collections.abc import Iterator

import msgspec
import pytest

from muro.config import EngineConfig
from muro.launch.spawn import spawn
from muro.transport.sockets import bound_address, send_nowait
from muro.wire.failure import SHUTTING_DOWN, ExitCode
from muro.wire.handshake import Init, encode_init
from muro.wire.output import FinishReason
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until
from tests.support.hosted import hosted, receive
from tests.support.rawpeer import IDENTITY, RawClient, RawPeer, failed, raw_peer

ABORT, LENGTH = FinishReason.ABORT, FinishReason.LENGTH


def wait_for_first_token(client: RawClient, *request_ids: str) -> None:
    client.read_until(lambda: all(client.tokens.get(request_id) for request_id in request_ids))


def exit_code(peer: RawPeer, within: float = 10.0) -> int | None:
    assert peer.child.wait(within), "the engine does not end"
    return peer.child.poll()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_patience_a_stop_aborts_everything_at_once(number: int) -> None:
    with raw_peer("faulty", clients=2, step_ms=1) as peer:
        for client in peer.clients:
            client.add(ask("one", FOREVER), ask("two", FOREVER))
            wait_for_first_token(client, "one", "two")
        os.kill(peer.child.pid, number)
        for client in peer.clients:
            assert [output.finish_reason for output in client.finish("one", "two")] == [ABORT, ABORT]
        assert exit_code(peer) == ExitCode.STOPPED
        for client in peer.clients:
            client.read_all()
            assert not client.dead, "an engine that was asked to stop has not failed"
        assert peer.child.failure() is None


def test_with_patience_what_runs_goes_on_and_nothing_new_begins() -> None:
    with raw_peer("faulty", clients=2, settings={"shutdown_timeout": 30.0}, step_ms=2) as peer:
        busy, late = peer.clients
        busy.add(ask("running", 400))
        wait_for_first_token(busy, "running")
        peer.child.terminate()
        while late.call("num_live").failure_message is None:
            pass  # the signal has not been noticed yet
        assert late.call("num_live").failure_message == SHUTTING_DOWN
        late.add(ask("late", 5))
        assert late.finish("late")[0].finish_reason is ABORT
        assert "running" not in busy.ended
        assert busy.finish("running")[0].finish_reason is LENGTH
        assert busy.tokens["running"] == [7, 8, 9] * 133 + [7]
        assert exit_code(peer) == ExitCode.STOPPED


def test_what_is_not_done_when_patience_ends_is_aborted() -> None:
    with raw_peer("faulty", settings={"shutdown_timeout": 0.3}, step_ms=2) as peer:
        (client,) = peer.clients
        client.add(ask("short", 50), ask("endless", FOREVER))
        wait_for_first_token(client, "short", "endless")
        peer.child.terminate()
        assert [output.finish_reason for output in client.finish("short", "endless")] == [LENGTH, ABORT]
        assert exit_code(peer) == ExitCode.STOPPED


def test_an_idle_engine_ends_at_once_however_patient() -> None:
    with raw_peer("faulty", settings={"shutdown_timeout": 60.0}) as peer:
        peer.child.terminate()
        assert exit_code(peer) == ExitCode.STOPPED


def test_further_signals_do_not_cut_the_clean_up_short() -> None:
    with raw_peer("faulty", fault="shutdown:sleep=0.5") as peer:
        began = time.monotonic()
        peer.child.terminate()
        until(lambda: peer.child.progress().phase == "stopping")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            os.kill(peer.child.pid, number)
        assert exit_code(peer) == ExitCode.STOPPED
        assert time.monotonic() - began >= 0.5
        assert peer.child.failure() is None


def test_the_fifth_signal_does() -> None:
    with raw_peer("faulty", fault="shutdown:hang") as peer:
        peer.child.terminate()
        until(lambda: peer.child.progress().phase == "stopping")
        while peer.child.poll() is None:  # signals that come too fast are one
            os.kill(peer.child.pid, signal.SIGTERM)
            peer.child.wait(0.05)
        assert exit_code(peer) == 128 + signal.SIGTERM


def test_a_clean_up_that_fails_is_told() -> None:
    with raw_peer("faulty", fault="shutdown:raise") as peer:
        peer.child.terminate()
        assert exit_code(peer) == ExitCode.ENGINE_FAILED
        record = peer.child.failure()
        assert record is not None and record.phase == "stopping" and record.kind == "FaultError"


@pytest.mark.parametrize("fault", ["step:raise", "operation:executor"])
def test_an_engine_that_fails_tells_every_client(fault: str) -> None:
    with raw_peer("faulty", clients=3, step_ms=1) as peer:
        for client in peer.clients:
            client.add(ask("r", FOREVER))
            wait_for_first_token(client, "r")
        peer.clients[0].call("inject", fault)
        for client in peer.clients:
            client.read_until(lambda client=client: client.dead)
            assert "r" not in client.ended, "the notice is the end of all of them"
        assert exit_code(peer) == ExitCode.ENGINE_FAILED
        record = peer.child.failure()
        assert record is not None and record.phase == "serving"


def test_an_input_thread_that_dies_is_a_failure_of_the_engine() -> None:
    with raw_peer("faulty", clients=2) as peer:
        peer.clients[0].call("inject", "operation:thread=muro-receiver")
        peer.clients[1].add(ask("a"))  # an exception meets a thread only when it runs
        for client in peer.clients:
            client.read_until(lambda client=client: client.dead)
        assert exit_code(peer) == ExitCode.ENGINE_FAILED


def test_when_the_sender_has_died_exit_code_record_and_page_tell() -> None:
    with raw_peer("faulty", clients=2, step_ms=1) as peer:
        first, second = peer.clients
        first.add(ask("r", FOREVER))
        wait_for_first_token(first, "r")
        first.send(b"\x03", msgspec.msgpack.encode([0, 1, "inject", ["operation:thread=muro-sender"]]))
        assert exit_code(peer) == ExitCode.ENGINE_FAILED
        record = peer.child.failure()
        assert record is not None and "the output thread died" in record.message
        assert peer.child.progress().phase == "stopping" and peer.child.progress().steps_ended > 0
        death = peer.child.death()
        assert death.failure == record and death.status == ExitCode.ENGINE_FAILED
        for client in (first, second):
            client.read_all()
            assert not client.dead


def test_an_engine_that_cannot_be_built_has_no_client_to_tell() -> None:
    """There is nobody to tell before the sockets stand: exit code and record do."""
    with hosted() as front:
        config = EngineConfig(
            engine="faulty", options={"fault": "loading:raise"}, handshake_address=bound_address(front.handshake)
        )
        child = spawn("muro.process.main:run_engine_core", msgspec.to_builtins(config))
        try:
            receive(front.handshake)
            assert send_nowait(front.handshake, [IDENTITY, encode_init(Init(front.addresses))])
            assert child.wait(10) and child.poll() == ExitCode.STARTUP_FAILED
            record = child.failure()
            assert record is not None and record.phase == "loading: weights"
        finally:
            child.close()


@pytest.fixture
def told() -> Iterator[dict[str, object]]:
    """What an engine process left as it was, after it has served, was asked to stop and has cleaned up."""
    with hosted() as front:
        config = EngineConfig(handshake_address=bound_address(front.handshake))
        child = spawn("tests.support.telling:run_and_tell", msgspec.to_builtins(config))
        try:
            receive(front.handshake)
            assert send_nowait(front.handshake, [IDENTITY, encode_init(Init(front.addresses))])
            front.ready_responses()
            front.ready()
            until(lambda: child.progress().phase == "serving")
            child.terminate()
            assert child.wait(10) and child.poll() == ExitCode.STOPPED
            yield json.loads(child.log_tail().splitlines()[-1])
        finally:
            child.close()


def test_the_process_is_given_back_as_it_was(told: dict[str, object]) -> None:
    assert told == {"handlers given back": True, "frozen": 0, "threads": []}


def test_whatever_has_arrived_when_an_engine_stops_gets_one_end() -> None:
    with raw_peer("faulty", fault="step:sleep=0.5") as peer:
        (client,) = peer.clients
        names = [f"r{number}" for number in range(2000)]
        for number, name in enumerate(names):
            client.add(ask(name, 3))
            if number == 1000:
                peer.child.terminate()
        assert exit_code(peer) == ExitCode.STOPPED
        client.read_all()
        assert set(client.endings.values()) == {1}
        assert not any(failed(output) for output in client.ended.values())
        answered = [name in client.ended for name in names]
        assert answered == sorted(answered, reverse=True), "only those may be missing that came too late to be read"
        assert answered[1000]
