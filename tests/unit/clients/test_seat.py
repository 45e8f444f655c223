"""One receives, the others wait: no ring is lost, the seat is handed on, nobody keeps it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from muro.clients.seat import Seat, Waiter
from muro.errors import UsageError
from tests.support.deadline import until


class Desk:
    """A seat whose holder receives from an event, and letters for several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.news = threading.Event()
        self.seat = Seat(self.lock, self.news.set)
        self.letters: set[int] = set()
        self.waiters: dict[int, Waiter] = {}
        self.receiving = 0
        self.most_receiving = 0

    def receive(self, timeout: float | None) -> None:
        self.receiving += 1
        self.most_receiving = max(self.receiving, self.most_receiving)
        try:
            self.news.wait(timeout)
            self.news.clear()
        finally:
            self.receiving -= 1

    def wait_for(self, letter: int, timeout: float | None = 20.0) -> bool:
        waiter = self.waiters[letter] = Waiter()
        return self.seat.wait(waiter, lambda: letter in self.letters, self.receive, timeout)

    def deliver(self, letter: int) -> None:
        with self.lock:
            self.letters.add(letter)
            self.seat.ring(self.waiters[letter])


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def threads() -> Iterator[Callable[..., object]]:
    with ThreadPoolExecutor(16) as pool:
        yield pool.submit


def test_what_is_there_needs_no_wait(desk: Desk) -> None:
    desk.letters.add(1)
    assert desk.wait_for(1, timeout=0)
    assert desk.most_receiving == 0


def test_a_timeout_of_zero_looks_once(desk: Desk) -> None:
    assert not desk.wait_for(1, timeout=0)
    assert desk.most_receiving == 1


def test_time_runs_out_for_the_holder_and_for_the_others(desk: Desk, threads: Callable) -> None:
    waits = [threads(desk.wait_for, number, 0.05) for number in range(3)]
    assert [wait.result(10) for wait in waits] == [False] * 3
    assert desk.most_receiving == 1


def test_everybody_gets_their_letter_whoever_receives(desk: Desk, threads: Callable) -> None:
    waits = [threads(desk.wait_for, number) for number in range(16)]
    until(lambda: len(desk.waiters) == 16 and desk.receiving)
    for number in range(16):  # the holder of the seat changes on the way
        desk.deliver(number)
    assert all(wait.result(10) for wait in waits)
    assert desk.most_receiving == 1


def test_an_error_in_receiving_hands_the_seat_on(desk: Desk, threads: Callable) -> None:
    failed = threading.Event()

    def fail(timeout: float | None) -> None:
        failed.wait(10)
        raise KeyboardInterrupt

    holder = threads(desk.seat.wait, Waiter(), lambda: False, fail, None)
    until(lambda: desk.seat._holder)
    other = threads(desk.wait_for, 1)
    until(lambda: desk.seat._sleeping)
    failed.set()
    with pytest.raises(KeyboardInterrupt):
        holder.result(10)
    until(lambda: desk.receiving)
    desk.deliver(1)
    assert other.result(10)


def test_closing_waits_until_the_holder_has_left(desk: Desk, threads: Callable) -> None:
    wait = threads(desk.wait_for, 1)
    until(lambda: desk.receiving)
    assert not desk.seat.close(0.02)  # its holder has not been told that it is over
    desk.deliver(1)
    assert wait.result(10)
    assert desk.seat.close(10)
    assert not desk.wait_for(2, timeout=0.02)  # nobody receives any more
    assert desk.most_receiving == 1


def test_the_holder_is_known_in_its_own_thread_alone(desk: Desk, threads: Callable) -> None:
    inside: list[bool] = []

    def look(timeout: float | None) -> None:
        inside.append(desk.seat.held_here)
        inside.append(threads(lambda: desk.seat.held_here).result(10))

    desk.seat.wait(Waiter(), lambda: bool(inside), look, 5)
    assert inside == [True, False] and not desk.seat.held_here


def test_nobody_waits_on_top_of_the_holder_in_the_same_thread(desk: Desk) -> None:
    def receive(timeout: float | None) -> None:
        with pytest.raises(UsageError, match="signal handler"):
            desk.wait_for(2)
        desk.letters.add(1)

    desk.waiters[1] = Waiter()
    assert desk.seat.wait(desk.waiters[1], lambda: 1 in desk.letters, receive, 20.0)
    desk.letters.add(2)
    assert desk.wait_for(2), "afterwards it is as free as ever"


def test_nobody_enters_on_top_of_a_bookkeeping_in_the_same_thread(desk: Desk) -> None:
    with desk.lock:
        for refused in (desk.seat.check_may_enter, desk.seat.check_may_wait, lambda: desk.wait_for(1)):
            with pytest.raises(UsageError, match="signal handler"):
                refused()
    desk.seat.check_may_wait()
