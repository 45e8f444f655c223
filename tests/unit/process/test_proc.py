"""Start and end of an engine behind real sockets: what comes before what, and what happens if it does not come.

The engine runs on a thread of the test; processes and signals have tests of their own.
"""

import gc
import logging
import threading
from collections.abc import Iterator

import pytest

from muro.engine.interface import EngineCore, EngineInfo, Report
from muro.engines.echo import EchoEngine
from muro.errors import InternalError, StartupError
from muro.process import proc
from muro.transport.sockets import send_nowait
from muro.wire.control import StartDPWave
from muro.wire.frames import COORDINATOR_READY, SUBSCRIBE
from muro.wire.handshake import Addresses, Features, Init
from muro.wire.output import FinishReason
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until
from tests.support.hosted import hosted, is_silent, receive
from tests.support.rawpeer import IDENTITY, WAVE, pack


class Loader:
    """Loads an echo when it may."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.may_end = threading.Event()
        self.shut_down = 0

    def __call__(self, report: Report) -> EngineCore:
        report("weights", 40)
        self.called.set()
        assert self.may_end.wait(20)
        loader = self

        class Loaded(EchoEngine):
            def shutdown(self) -> None:
                loader.shut_down += 1

        return Loaded()


def io_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()} & {"muro-receiver", "muro-sender"}


def test_the_order_of_a_start() -> None:
    load = Loader()
    with hosted(load, clients=2, gated=True) as engine:
        engine.greet()
        assert not load.called.is_set(), "nothing is loaded before INIT has come"
        engine.init()
        assert load.called.wait(20)
        assert not io_threads(), "the threads start when there is an engine"
        assert engine.page.read().phase == "loading: weights" and engine.page.read().percent == 40
        load.may_end.set()
        assert len(engine.ready_responses()) == 2
        assert engine.gate is not None and receive(engine.gate) == [SUBSCRIBE]
        assert io_threads() == {"muro-receiver", "muro-sender"}
        assert is_silent(engine.handshake, 50), "READY waits for the coordinator"
        assert engine.started is None
        assert send_nowait(engine.gate, [COORDINATOR_READY])
        engine.ready()
        until(lambda: engine.started and engine.page.read().phase == "serving")
    assert engine.ended() is None
    assert load.shut_down == 1


def test_without_a_coordinator_nothing_is_waited_for() -> None:
    with hosted() as engine:
        engine.join()
        engine.clients[0].add(ask("r", 2))
        assert engine.clients[0].finish("r")[0].finish_reason is FinishReason.LENGTH
    assert engine.ended() is None


@pytest.mark.parametrize("muro", [None, Features("1")], ids=["foreign", "muro"])
def test_the_ready_response_answers_in_kind(muro: Features | None) -> None:
    with hosted() as engine:
        engine.greet()
        engine.init(muro)
        (response,) = engine.ready_responses()
        assert (response.muro is None) is (muro is None)
        assert response.dp_stats_address is None and response.world_size == 1


def test_waiting_for_the_coordinator_has_no_end_while_the_input_thread_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "READY_STEP_MS", 5)
    with hosted(gated=True) as engine:
        engine.greet()
        engine.init()
        engine.ready_responses()
        assert is_silent(engine.handshake, 100), "many steps later"
        assert engine.thread.is_alive()
        assert engine.gate is not None
        receive(engine.gate)
        assert send_nowait(engine.gate, [COORDINATOR_READY])
        engine.ready()
    assert engine.ended() is None


def test_an_input_thread_that_dies_during_start_up_ends_it_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with hosted(gated=True) as engine:
        engine.greet()
        engine.init(coordinator_input="nowhere")
        error = engine.ended()
        for client in engine.clients:
            client.read_until(lambda client=client: client.dead)
    assert isinstance(error, StartupError) and error.phase == "connecting"
    assert "input thread died during start-up: 'nowhere' is no address" in str(error)
    assert error.__cause__ is not None


def test_a_stop_is_heard_while_the_gate_is_closed() -> None:
    with hosted(gated=True) as engine:
        engine.greet()
        engine.init()
        engine.ready_responses()
        engine.proc.ask_to_stop()
        assert engine.ended() is None
        assert engine.started is False
        assert is_silent(engine.handshake, 0), "an engine that stops is never READY"


def test_a_stop_is_heard_while_nobody_answers_hello() -> None:
    load = Loader()
    with hosted(load) as engine:
        engine.greet()
        engine.proc.ask_to_stop()
        assert engine.ended() is None
        assert engine.started is False and not load.called.is_set()


def test_a_stop_during_loading_starts_no_thread_and_shuts_the_engine_down() -> None:
    load = Loader()
    with hosted(load) as engine:
        engine.greet()
        engine.init()
        assert load.called.wait(20)
        engine.proc.ask_to_stop()
        load.may_end.set()
        assert engine.ended() is None
        assert engine.started is False and load.shut_down == 1
        assert is_silent(engine.clients[0].input, 0)


def test_words_of_the_coordinator_are_heard_on_both_roads() -> None:
    """Some front-ends send START_DP_WAVE on the input socket; a second READY means that a rank came later."""
    with hosted(gated=True) as engine:
        engine.greet()
        engine.init()
        engine.ready_responses()
        assert engine.gate is not None
        receive(engine.gate)
        assert send_nowait(engine.gate, [COORDINATOR_READY])
        engine.ready()
        (client,) = engine.clients
        client.add(ask("before", FOREVER))
        for exclude in (None, 0, IDENTITY):
            wave = pack(StartDPWave(1, exclude))
            assert send_nowait(engine.gate, [WAVE, wave])
            client.send(WAVE, wave)
        assert send_nowait(engine.gate, [COORDINATOR_READY])
        assert send_nowait(engine.gate, [b"\x09", b"nonsense"])
        until(lambda: engine.page.read().dropped_frames == 1, what="the last of these is read")
        assert client.call("is_sleeping").failure_message is None
        client.add(ask("after"))
        assert client.finish("after")[0].finish_reason is FinishReason.LENGTH
        assert "before" not in client.ended
    assert engine.ended() is None


@pytest.fixture
def threshold() -> Iterator[tuple[int, int, int]]:
    """How often the collector looks: not as often as an engine lets it."""
    before = gc.get_threshold()
    gc.set_threshold(777, 11, 12)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_the_collector_is_left_as_it_was_found(threshold: tuple[int, int, int]) -> None:
    with hosted() as engine:
        engine.join()
        until(lambda: gc.get_freeze_count() > 0, what="the heap is frozen once the engine serves")
    assert engine.ended() is None
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == threshold


def test_run_before_start_is_our_own_fault() -> None:
    with hosted() as engine, pytest.raises(InternalError, match="before start"):
        engine.proc.run()


def test_close_without_start_and_twice() -> None:
    with hosted() as engine:
        engine.proc.close()
        engine.proc.close()
        assert engine.page.read().phase == "stopping"


def test_only_an_engine_that_gives_memory_back_says_that_it_can_sleep() -> None:
    init = Init(Addresses([], []))
    assert not proc.ready_response(EngineInfo(), init).enable_sleep_mode
    assert proc.ready_response(EngineInfo(releasable=("kv_cache",)), init).enable_sleep_mode
