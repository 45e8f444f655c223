import os
import threading
from collections.abc import Iterator

import pytest

from muro.errors import InternalError
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Socket,
    bind_pull,
    bound_address,
    close,
    connect_push,
    receive_nowait,
    send_nowait,
)
from muro.transport.wakeup import Wakeup

Pair = tuple[Socket, Socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pull = bind_pull("tcp://127.0.0.1:0")
    push = connect_push(bound_address(pull), linger_ms=0)
    yield pull, push
    close(push)
    close(pull)


def test_handlers_of_readable_sources_run(pair: Pair) -> None:
    pull, push = pair
    got: list[object] = []
    pump = Pump()
    pump.add(pull, lambda: got.append(receive_nowait(pull)))
    assert pump.poll(0) == 0
    send_nowait(push, [b"one"])
    send_nowait(push, [b"two"])
    while len(got) < 2:
        assert pump.poll(5000) == 1
    assert got == [[b"one"], [b"two"]]
    assert pump.poll(0) == 0


def test_what_a_handler_leaves_is_offered_again(pair: Pair) -> None:
    pull, push = pair
    calls: list[int] = []
    pump = Pump()
    pump.add(pull, lambda: calls.append(1))
    send_nowait(push, [b"x"])
    assert [pump.poll(5000), pump.poll(5000), pump.poll(5000)] == [1, 1, 1]
    assert len(calls) == 3


def test_a_wakeup_ends_an_endless_poll(pair: Pair) -> None:
    pull, _ = pair
    pump = Pump()
    pump.add(pull, lambda: None)
    with Wakeup() as wakeup:
        pump.add(wakeup.fileno(), lambda: None)
        waker = threading.Thread(target=wakeup.set)
        waker.start()
        assert pump.poll(None) == 1
        waker.join()


def test_the_end_of_a_pipe_is_readable() -> None:
    reading, writing = os.pipe()
    pump = Pump()
    ends: list[int] = []
    pump.add(reading, lambda: ends.append(reading))
    assert pump.poll(0) == 0
    os.close(writing)
    assert pump.poll(5000) == 1
    os.close(reading)
    assert ends == [reading]


def test_a_removed_source_is_not_called_any_more(pair: Pair) -> None:
    pull, _ = pair
    with Wakeup() as first, Wakeup() as second:
        pump = Pump()
        called: list[str] = []

        def remove_the_other(name: str, other: Wakeup) -> None:
            called.append(name)
            pump.remove(other.fileno())

        pump.add(pull, lambda: None)
        pump.add(first.fileno(), lambda: remove_the_other("first", second))
        pump.add(second.fileno(), lambda: remove_the_other("second", first))
        first.set()
        second.set()
        pump.poll(5000)
        pump.poll(5000)
        assert called == ["first", "first"]
        pump.remove(second.fileno())
        assert len(pump) == 2


def test_adding_again_replaces_the_handler(pair: Pair) -> None:
    pull, push = pair
    called: list[str] = []
    pump = Pump()
    pump.add(pull, lambda: called.append("old"))
    pump.add(pull, lambda: called.append("new"))
    send_nowait(push, [b"x"])
    assert pump.poll(5000) == 1
    assert called == ["new"]


def test_what_a_handler_raises_passes_through_and_costs_nothing(pair: Pair) -> None:
    pull, push = pair
    pump = Pump()
    pump.add(pull, lambda: 1 / 0)
    send_nowait(push, [b"x"])
    with pytest.raises(ZeroDivisionError):
        pump.poll(5000)
    assert receive_nowait(pull) == [b"x"]


def test_polling_nothing_is_refused() -> None:
    with pytest.raises(InternalError, match="nothing"):
        Pump().poll(None)
