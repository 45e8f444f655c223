import os
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from muro.child.signals import FORCE_AFTER, STOP_SIGNALS, StopSignals
from muro.errors import InternalError


@pytest.fixture(autouse=True)
def handlers_unchanged() -> Iterator[None]:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_signals_are_counted_and_wake() -> None:
    woken: queue.SimpleQueue[str] = queue.SimpleQueue()
    signals = StopSignals(lambda: woken.put("stop"))
    signals.install()
    try:
        assert not signals.requested
        assert signals.last is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert woken.get(timeout=5) == "stop"
        assert (signals.requested, signals.count, signals.last) == (True, 1, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # raises no KeyboardInterrupt
        assert woken.get(timeout=5) == "stop"
        assert (signals.count, signals.last) == (2, signal.SIGINT)
    finally:
        signals.restore()


def test_a_signal_interrupts_a_waiting_queue() -> None:
    """The loop waits in `SimpleQueue.get`; a signal from outside must get through to it."""
    woken: queue.SimpleQueue[str] = queue.SimpleQueue()
    signals = StopSignals(lambda: woken.put("stop"))
    signals.install()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        assert woken.get(timeout=10) == "stop"
    finally:
        timer.join()
        signals.restore()


def test_restore_gives_back_what_was_there_and_may_come_twice() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        signals = StopSignals(lambda: None)
        signals.install()
        assert signal.getsignal(signal.SIGTERM) is not mine
        signals.restore()
        signals.restore()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_is_refused_in_words() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(InternalError, match="main thread"):
        pool.submit(StopSignals(lambda: None).install).result()


def test_the_fifth_signal_forces() -> None:
    forced: queue.SimpleQueue[int] = queue.SimpleQueue()
    woken: queue.SimpleQueue[int] = queue.SimpleQueue()
    signals = StopSignals(lambda: woken.put(signals.count), forced.put)
    signals.install()
    try:
        for count in range(1, FORCE_AFTER + 3):
            os.kill(os.getpid(), signal.SIGINT)
            assert woken.get(timeout=5) == count
            if count < FORCE_AFTER:
                assert forced.empty()
        assert forced.get(timeout=5) == signal.SIGINT
        assert forced.empty()  # once
    finally:
        signals.restore()


def test_a_signal_that_another_thread_takes_is_heard() -> None:
    """The kernel may give it to any thread, while the main one sleeps in a lock."""
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    signals = StopSignals(lambda: woken.put(None))
    signals.install()
    thread = threading.Thread(
        target=lambda: (
            threading.Event().wait(0.05),
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM),
        )
    )
    thread.start()
    try:
        woken.get(timeout=10)
    finally:
        thread.join()
        signals.restore()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads, where Python 3.12 warns of forking
def test_a_forked_process_is_rid_of_it() -> None:
    signals = StopSignals(lambda: None)
    signals.install()
    ready, tell = os.pipe()
    try:
        if (pid := os.fork()) == 0:
            os.write(tell, b".")
            signal.pause()
            os._exit(1)
        os.read(ready, 1)
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        assert signals.count == 0
    finally:
        os.close(ready)
        os.close(tell)
        signals.restore()
