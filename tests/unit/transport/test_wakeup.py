import os
import select
import signal
import threading

from muro.transport.wakeup import Wakeup


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_set_makes_it_readable_until_clear() -> None:
    with Wakeup() as wakeup:
        assert not is_readable(wakeup.fileno())
        wakeup.set()
        wakeup.set()
        assert is_readable(wakeup.fileno())
        assert wakeup.clear()
        assert not is_readable(wakeup.fileno())
        assert not wakeup.clear()


def test_another_thread_ends_a_poll() -> None:
    with Wakeup() as wakeup:
        waker = threading.Thread(target=wakeup.set)
        waker.start()
        assert select.select([wakeup.fileno()], [], [], 10)[0] == [wakeup.fileno()]
        waker.join()


def test_a_signal_handler_may_set_it() -> None:
    with Wakeup() as wakeup:
        before = signal.signal(signal.SIGUSR1, lambda *_: wakeup.set())
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert select.select([wakeup.fileno()], [], [], 10)[0]
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_setting_it_while_it_is_closed_touches_nobody_elses_descriptor() -> None:
    """The number is free again at once; here it goes to a pipe, into which nobody shall write."""
    over = threading.Event()
    wakeups: list[Wakeup] = [Wakeup()]
    errors: list[Exception] = []

    def keep_setting() -> None:
        while not over.is_set():
            try:
                wakeups[0].set()
            except OSError as error:
                errors.append(error)

    waker = threading.Thread(target=keep_setting)
    waker.start()
    for _ in range(2000):
        wakeups[0] = Wakeup().open()
        wakeups[0].set()
        wakeups[0].close()
        reader, writer = os.pipe()
        os.close(writer)
        assert os.read(reader, 8) == b""
        os.close(reader)
    over.set()
    waker.join()
    assert errors == []


def test_a_full_counter_blocks_nobody() -> None:
    with Wakeup() as wakeup:
        os.eventfd_write(wakeup.fileno(), 2**64 - 2)
        wakeup.set()
        assert is_readable(wakeup.fileno())


def test_opens_late_and_closes_twice() -> None:
    wakeup = Wakeup()
    assert wakeup.fileno() == -1
    wakeup.set()
    fd = wakeup.open().fileno()
    assert wakeup.open().fileno() == fd
    assert not wakeup.clear()
    wakeup.close()
    wakeup.close()
    wakeup.set()
    assert not wakeup.clear()


def test_does_not_leak_into_children() -> None:
    with Wakeup() as wakeup:
        assert not os.get_inheritable(wakeup.fileno())
