"""What happens to connections: as libzmq tells it, in order, with the same descriptor at the beginning and the end."""

import socket as plain
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from muro.transport.endpoint import parse_address
from muro.transport.monitor import Change, Connection, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Socket,
    bind_router,
    bound_address,
    close,
    connect_dealer,
    receive_nowait,
    send_nowait,
)
from tests.support.deadline import until


@pytest.fixture
def kept() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Notes:
    """What a monitor tells."""

    def __init__(self, kept: ExitStack) -> None:
        self.changes: list[tuple[Change, int]] = []
        self._kept = kept
        self._pump = Pump()

    def watch(self, socket: Socket) -> None:
        monitor = Monitor.of(socket)
        self._kept.callback(monitor.close)

        def read() -> None:
            if (news := monitor.read()) is not None:
                self.changes.append(news)

        self._pump.add(monitor.socket, read)

    def kinds(self) -> list[Change]:
        while self._pump.poll(0):
            pass
        return [change for change, _ in self.changes]


@pytest.fixture
def notes(kept: ExitStack) -> Notes:
    return Notes(kept)


def router(kept: ExitStack, notes: Notes, address: str = "tcp://127.0.0.1:0") -> Socket:
    socket = bind_router(address, prepare=notes.watch)
    kept.callback(close, socket, 0)
    return socket


def test_who_listens_hears_who_comes_and_goes(kept: ExitStack, notes: Notes) -> None:
    bound = router(kept, notes)
    dealer = connect_dealer(bound_address(bound), b"\0\0")
    until(lambda: Change.UP in notes.kinds())
    close(dealer, 0)
    until(lambda: Change.DOWN in notes.kinds())
    (accepted, began), up, (down, ended) = notes.changes
    assert (accepted, up[0], down) == (Change.ACCEPTED, Change.UP, Change.DOWN)
    assert began == ended > 0


def test_who_dials_hears_it_too(kept: ExitStack, notes: Notes) -> None:
    bound = router(kept, Notes(kept))
    dealer = connect_dealer(bound_address(bound), b"\0\0", prepare=notes.watch)
    kept.callback(close, dealer, 0)
    assert send_nowait(dealer, [b"hello"])
    until(lambda: notes.kinds() == [Change.DIALLED, Change.UP])
    close(bound, 0)
    until(lambda: notes.kinds()[:3] == [Change.DIALLED, Change.UP, Change.DOWN])


def test_who_speaks_another_language_is_told_apart(kept: ExitStack, notes: Notes) -> None:
    bound = router(kept, notes)
    where = parse_address(bound_address(bound))
    with plain.create_connection((where.host, where.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + b"x" * 100)
    until(lambda: notes.kinds()[-1:] == [Change.DOWN])
    assert Change.UP not in notes.kinds() and notes.kinds()[0] is Change.ACCEPTED


def test_reading_when_there_is_nothing(kept: ExitStack) -> None:
    socket = bind_router("tcp://127.0.0.1:0")
    kept.callback(close, socket, 0)
    monitor = Monitor.of(socket)
    assert monitor.read() is None
    monitor.close()
    monitor.close()


def watched_router() -> tuple[Socket, Monitor]:
    """A socket whose news nobody reads, and who should."""
    monitors: list[Monitor] = []
    return bind_router("tcp://127.0.0.1:0", prepare=lambda made: monitors.append(Monitor.of(made))), monitors[0]


@pytest.mark.parametrize("first", ["socket", "monitor"])
def test_news_that_nobody_hears_stop_nothing(kept: ExitStack, first: str) -> None:
    """libzmq's one I/O thread says the news: were it to wait for a listener, nothing would be sent any more."""
    for _ in range(100):
        bound, monitor = watched_router()
        peers = [connect_dealer(bound_address(bound), bytes([0, n])) for n in range(5)]
        for peer in peers:
            close(peer, 0)
        if first == "monitor":
            monitor.close()
        close(bound, 0)
        monitor.close()
    bound = bind_router("tcp://127.0.0.1:0")
    kept.callback(close, bound, 0)
    dealer = connect_dealer(bound_address(bound), b"\0\0")
    kept.callback(close, dealer, 0)
    send_nowait(dealer, [b"still there"])
    until(lambda: receive_nowait(bound) == [b"\0\0", b"still there"])


def test_more_news_than_anybody_reads_stop_nothing(kept: ExitStack) -> None:
    bound, monitor = watched_router()
    kept.callback(close, bound, 0)
    kept.callback(monitor.close)
    where = parse_address(bound_address(bound))
    for _ in range(1500):  # of each we hear twice
        with plain.create_connection((where.host, where.port)):
            pass
    dealer = connect_dealer(bound_address(bound), b"\0\0")
    kept.callback(close, dealer, 0)
    send_nowait(dealer, [b"still there"])
    until(lambda: receive_nowait(bound) == [b"\0\0", b"still there"])


def test_a_connection_is_open_until_its_own_descriptor_is_closed_and_given_to_another() -> None:
    here, there = plain.socketpair()
    number = here.fileno()
    connection = Connection(number)
    assert connection.is_open
    here.close()
    assert not connection.is_open
    with there, plain.fromfd(there.fileno(), there.family, there.type) as other:
        assert other.fileno() == number
        assert not connection.is_open
        assert not Connection(number + 1000).is_open
