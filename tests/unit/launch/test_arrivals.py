"""Whose connection has ended: by descriptors, through real sockets."""

import logging
from collections.abc import Iterator

import pytest

from muro.ids import EngineRank
from muro.launch.arrivals import Arrivals
from muro.transport.monitor import Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import Socket, bind_router, bound_address, close, connect_dealer, receive_from, send_nowait
from tests.support.deadline import until


class Door:
    def __init__(self) -> None:
        monitors: list[Monitor] = []
        self.socket = bind_router("tcp://127.0.0.1:0", prepare=lambda made: monitors.append(Monitor.of(made)))
        self.arrivals = Arrivals(monitors[0], "front")
        self.lost: list[EngineRank] = []

    def dial(self, identity: bytes) -> tuple[Socket, int]:
        """A connection, and the descriptor by which it is known here."""
        dealer = connect_dealer(bound_address(self.socket), identity, linger_ms=0)
        assert send_nowait(dealer, [b"hello"])
        received: list[tuple[list[bytes], int]] = []
        pump = Pump()
        pump.add(self.socket, lambda: received.append(receive_from(self.socket)))  # type: ignore[arg-type]
        assert pump.poll(5000)
        assert received[0][0] == [identity, b"hello"]
        return dealer, received[0][1]

    def hear(self) -> list[EngineRank]:
        self.lost += self.arrivals.lost()
        return self.lost


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.arrivals.close()
    close(door.socket, 0)


def test_each_engine_is_missed_by_its_own_connection(door: Door) -> None:
    connections = {}
    for rank in range(5):
        dealer, descriptor = door.dial(bytes([rank, 0]))
        door.arrivals.note(EngineRank(rank), descriptor)
        connections[rank] = dealer
    assert door.hear() == []
    for rank in (3, 0, 4):
        close(connections.pop(rank), 0)
        until(lambda rank=rank: rank in door.hear())
    assert door.lost == [3, 0, 4]
    for dealer in connections.values():
        close(dealer, 0)
    until(lambda: sorted(door.hear()) == [0, 1, 2, 3, 4])


def test_a_descriptor_that_is_used_again_is_another_connection(door: Door) -> None:
    """Strangers who came and went by it before are not mistaken for the engine."""
    used: set[int] = set()
    for number in range(10):
        dealer, descriptor = door.dial(b"stranger%d" % number)
        used.add(descriptor)
        close(dealer, 0)
        until(lambda count=number + 1: door.hear() == [] and door.arrivals.strangers == count)
    dealer, descriptor = door.dial(b"\0\0")
    assert descriptor in used
    door.arrivals.note(EngineRank(0), descriptor)
    assert door.hear() == []
    close(dealer, 0)
    until(lambda: door.hear() == [0])


def test_one_that_has_gone_before_it_was_noted_is_lost(door: Door) -> None:
    dealer, descriptor = door.dial(b"\0\0")
    close(dealer, 0)
    until(lambda: door.hear() == [] and door.arrivals.strangers == 1)
    door.arrivals.note(EngineRank(0), descriptor)
    assert door.hear() == [0]


def test_strangers_are_counted_and_told_at_a_limited_rate(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            dealer, _ = door.dial(b"stranger%d" % number)
            close(dealer, 0)
        until(lambda: door.hear() == [] and door.arrivals.strangers == 20)
    assert len(caplog.records) == 5 and "front socket were no engine's" in caplog.text
