"""The queues between the threads: any thread may write, a signal handler too, and no writer ever waits."""

import signal
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from muro.engine.events import WAKEUP, Abort
from muro.ids import ClientIndex
from muro.process.queues import AHEAD, CAUGHT_UP, Control, InputQueue, OutputQueue


def test_events_keep_their_order() -> None:
    inbox = InputQueue()
    events = [Abort(ClientIndex(0), [str(i)]) for i in range(3)]
    for event in events:
        inbox.put(event)
    inbox.wake()
    assert [inbox.get_nowait() for _ in range(4)] == [*events, WAKEUP]
    assert inbox.empty()


def test_the_input_queue_is_of_the_kind_whose_put_is_reentrant() -> None:
    assert isinstance(InputQueue(), SimpleQueue)


def test_the_sender_waits_until_there_is_an_item_or_it_is_woken() -> None:
    outbox = OutputQueue()
    assert outbox.take() is None
    outbox.put([])
    outbox.wait()
    assert len(outbox) == 1 and outbox.take() == []
    outbox.wake()
    outbox.wait()
    outbox.wait(0.001)
    assert outbox.take() is None


def test_the_two_controls_are_no_messages() -> None:
    outbox: OutputQueue = OutputQueue()
    outbox.put(Control.DEAD)
    assert isinstance(outbox.take(), Control)


@pytest.fixture
def alarms() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_may_wake_while_the_queue_is_in_use(alarms: None) -> None:
    """With a lock in Python the handler would wait for the code that it interrupts."""
    inbox = InputQueue()
    woken: list[int] = []

    def handler(number: int, frame: object) -> None:
        woken.append(number)
        inbox.wake()

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    put = 0
    while len(woken) < 20:
        inbox.put(WAKEUP)
        put += 1
        inbox.get()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert inbox.qsize() == len(woken)


def test_the_loop_is_woken_once_when_the_sender_has_caught_up() -> None:
    outbox = OutputQueue()
    for _ in range(AHEAD):
        outbox.put([])
    assert not outbox.runs_ahead()
    assert not outbox.caught_up(), "nobody waits"
    outbox.put([])
    assert outbox.runs_ahead()
    while len(outbox) > CAUGHT_UP:
        assert not outbox.caught_up()
        outbox.take()
    assert outbox.caught_up()
    assert not outbox.caught_up(), "once is enough"
