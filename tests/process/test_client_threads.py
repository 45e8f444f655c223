"""One synchronous client and many threads, Ctrl-C, and processes that inherit it."""

import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from muro import ClientClosedError, FinishReason, SyncMPClient, connect
from muro.errors import CallTimeoutError, UsageError
from tests.support.asking import FOREVER, ask
from tests.support.counts import FULL, count
from tests.support.deadline import until


@pytest.fixture
def client() -> Iterator[SyncMPClient]:
    with connect(engine="faulty", options={"step_ms": 1}) as client:
        yield client


def tokens(stream: object) -> list[int]:
    return [token for item in stream for token in item.new_token_ids]


def is_waiting(client: SyncMPClient) -> bool:
    """Whether some thread holds the seat."""
    return client._seat._holder is not None


@pytest.mark.cases
@pytest.mark.timeout(180 if FULL else 60)
def test_fc43_sixteen_threads_on_one_client(client: SyncMPClient) -> None:
    def work(number: int) -> None:
        order = random.Random(number)
        for turn in range(count(25, 1000)):
            name = f"t{number}-{turn}"
            match order.randrange(5):
                case 0:
                    assert client.call("is_sleeping") is False
                case 1:
                    stream = client.generate(ask(name, FOREVER))
                    next(stream)
                    client.abort([name])
                    assert tokens(stream)[:1] in ([7], [8], [])
                case 2:
                    next(client.generate(ask(name, FOREVER)))
                case _:
                    length = order.randrange(1, 20)
                    assert tokens(client.generate(ask(name, length, [number]))) == [number] * length

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(work, number) for number in range(16)]:
            done.result()
    until(lambda: client.call("num_live") == 0)
    assert client.engines()[0].in_flight == 0


def test_threads_share_batches(client: SyncMPClient) -> None:
    left = threading.Semaphore(0)

    def read() -> list[int]:
        got: list[int] = []
        while True:
            batch = client.get_outputs(timeout=0.2)
            got += [token for item in batch.outputs for token in item.new_token_ids]
            if not batch and batch.scheduler_stats is None:
                left.release()
                return got

    with ThreadPoolExecutor(4) as pool:
        for number in range(8):
            client.add_request(ask(f"r{number}", 25, [number]))
        parts = [pool.submit(read) for _ in range(4)]
        assert sorted(t for part in parts for t in part.result()) == sorted([*range(8)] * 25)


def test_a_timeout_in_one_thread_leaves_the_others_alone(client: SyncMPClient) -> None:
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(lambda: tokens(client.generate(ask("a", 60))))
        with pytest.raises(CallTimeoutError):
            client.call("inject", "operation:sleep=0.1", timeout=0.01)
        assert len(stream.result()) == 60


@pytest.mark.parametrize("use", ["stream", "call", "batch"])
def test_closing_wakes_who_waits_in_another_thread(use: str) -> None:
    client = connect(engine="faulty", options={"step_ms": 1})

    def wait() -> None:
        match use:
            case "stream":
                tokens(client.generate(ask("a", FOREVER)))
            case "call":
                client.call("inject", "operation:hang")
            case "batch":
                client.get_outputs()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        until(lambda: is_waiting(client))
        client.close(timeout=1)
        with pytest.raises(ClientClosedError):
            waiting.result(10)


def interrupt_when(condition: Callable[[], object]) -> threading.Thread:
    """A thread that sends Ctrl-C to this process once the condition holds."""

    def send() -> None:
        until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.cases
@pytest.mark.parametrize("mode", ["stream", "streams", "beside"])
def test_fc16_ctrl_c_in_generate(client: SyncMPClient, mode: str) -> None:
    for turn in range(count(10, 200)):
        beside = []
        if mode == "beside":
            beside = [client.generate(ask(f"beside{turn}", 30, [3]))]
        victims = [client.generate(ask(f"victim{n}", FOREVER)) for n in range(3 if mode == "streams" else 1)]
        killer = interrupt_when(lambda: is_waiting(client))
        with pytest.raises(KeyboardInterrupt):
            while True:
                for victim in victims:
                    next(victim)
        killer.join()
        del victims
        gc.collect()  # the traceback's frames held the streams
        for number in range(3):
            assert tokens(client.generate(ask(f"victim{number}", 5, [number]))) == [number] * 5
        for items in map(list, beside):  # aborted if the interrupt hit the moment in which news were taken in
            got = tokens(items)
            assert got == [3] * 30 or items[-1].finish_reason == FinishReason.ABORT
    until(lambda: client.call("num_live") == 0)


@pytest.mark.cases
def test_fc16_ctrl_c_in_calls_and_batches() -> None:
    with connect(engine="faulty", options={"step_ms": 1}) as client:
        for _ in range(count(5, 100)):
            killer = interrupt_when(lambda: is_waiting(client))
            with pytest.raises(KeyboardInterrupt):
                client.get_outputs()
            killer.join()
        client.add_request(ask("a", 3))
        got: list[int] = []
        while len(got) < 3:
            got += [token for item in client.get_outputs(timeout=10).outputs for token in item.new_token_ids]
        assert got == [7, 8, 9]
        killer = interrupt_when(lambda: is_waiting(client))
        with pytest.raises(KeyboardInterrupt):
            client.call("inject", "operation:sleep=1")
        killer.join()
        assert client.call("num_live", timeout=10) == 0


def test_fc50_created_used_and_closed_outside_the_main_thread() -> None:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def live() -> list[int]:
        with connect(engine="echo") as client:
            return tokens(client.generate(ask("a")))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(live).result() == [7, 8, 9]
    assert handlers == {number: signal.getsignal(number) for number in signal.valid_signals()}


def test_a_forked_process_cannot_use_it_and_does_not_end_the_engine(client: SyncMPClient) -> None:
    tokens(client.generate(ask("a")))
    pid = os.fork()
    if pid == 0:
        refused = 0
        for use in (lambda: client.generate(ask("b")), lambda: client.call("is_sleeping"), client.check_health):
            try:
                use()
            except UsageError:
                refused += 1
        client.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert tokens(client.generate(ask("a"))) == [7, 8, 9]


def test_closing_in_a_signal_handler_of_the_thread_that_waits() -> None:
    client = connect(engine="faulty", options={"step_ms": 1})
    before = signal.signal(signal.SIGUSR1, lambda *_: client.close(timeout=2))
    try:
        stream = client.generate(ask("a", FOREVER))
        until_waiting = threading.Thread(
            target=lambda: (until(lambda: is_waiting(client)), os.kill(os.getpid(), signal.SIGUSR1))
        )
        until_waiting.start()
        with pytest.raises(ClientClosedError):
            tokens(stream)
        until_waiting.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    client.close()


def test_an_id_is_free_at_once_although_other_threads_hold_the_lock(
    client: SyncMPClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = client.generate(ask("same", FOREVER))
    next(stream)
    with client._lock:  # another thread is at work while this one leaves its stream ...
        stream.close()
    monkeypatch.setattr(client, "_enter", lambda: None)  # ... and again when it comes back
    assert tokens(client.generate(ask("same", 2, [5]))) == [5, 5]
