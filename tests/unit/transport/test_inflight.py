import random
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from muro.errors import InternalError
from muro.transport.inflight import MAX_POOLED_BYTES, WATERMARK, ZERO_COPY_BYTES, BufferPool, InFlight
from muro.transport.sockets import (
    Frame,
    Socket,
    bind_pull,
    bound_address,
    close,
    connect_push,
    context,
    receive_nowait,
)
from tests.support.counts import count
from tests.support.deadline import until

HEAD = struct.Struct("<IIII")
"""Message number, checksum of the body, checksum and length of the auxiliary frame."""


def slow_pull(address: str) -> Socket:
    """A PULL that takes one message at a time from its peer, so that the rest stays on the way."""
    socket = context().socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(address)
    return socket


Way = tuple[Socket, Socket]


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    """A slow PULL and a PUSH towards it."""
    pull = slow_pull(f"ipc://{tmp_path}/o")
    push = connect_push(f"ipc://{tmp_path}/o", linger_ms=0)
    yield pull, push
    close(push)
    close(pull)


class Reader(threading.Thread):
    """Reads and checks messages until `expected` have come, pausing now and then."""

    def __init__(self, address: str, expected: int, seed: int) -> None:
        super().__init__(name="reader")
        self.bad: list[str] = []
        self.read = 0
        self._address = address
        self._expected = expected
        self._random = random.Random(seed)
        self._pause = threading.Event()
        self.bound = threading.Event()

    def run(self) -> None:
        socket = slow_pull(self._address)
        self.bound.set()
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        while self.read < self._expected and poller.poll(20_000):
            frames = receive_nowait(socket)
            assert frames is not None
            self._check(frames)
            self.read += 1
            if self._random.random() < 0.02:
                self._pause.wait(0.002)
        close(socket)

    def _check(self, frames: list[Frame]) -> None:
        if len(frames) != 2:
            self.bad.append(f"{len(frames)} frames")
            return
        body, aux = frames
        number, body_sum, aux_sum, aux_length = HEAD.unpack_from(body)
        if number != self.read:
            self.bad.append(f"message {number} instead of {self.read}")
        if zlib.crc32(memoryview(body)[HEAD.size :]) != body_sum:
            self.bad.append(f"body of message {number}")
        if len(aux) != aux_length or zlib.crc32(aux) != aux_sum:
            self.bad.append(f"auxiliary frame of message {number}")


@pytest.mark.cases
@pytest.mark.timeout(1200)
def test_fc42_buffers_are_not_reused_while_being_sent(tmp_path: Path) -> None:
    """Bodies of 1 KiB to 1 MiB in reused buffers, a small tensor behind each, slow readers, checksums."""
    messages, clients = count(5000, 100_000), 3
    choose = random.Random(42)
    noise = choose.randbytes(2 << 20)
    addresses = [f"ipc://{tmp_path}/{client}" for client in range(clients)]
    readers = [Reader(address, messages // clients, seed) for seed, address in enumerate(addresses)]
    for reader in readers:
        reader.start()
        assert reader.bound.wait(10)
    sockets = [connect_push(address, linger_ms=0) for address in addresses]
    pool = BufferPool(clients + 1)
    in_flight = InFlight(16 << 20, pool)
    used: set[int] = set()
    reused = 0
    for number in range(messages // clients * clients):
        size = int(2 ** choose.uniform(10, 20))
        start = choose.randrange(len(noise) - size)
        body = memoryview(noise)[start : start + size]
        aux = choose.randbytes(choose.choice((4, 64, 512, 600 << 10 if number % 50 == 0 else 16)))
        buffer = pool.take()
        reused += id(buffer) in used
        used.add(id(buffer))
        head = HEAD.pack(number // clients, zlib.crc32(body), zlib.crc32(aux), len(aux))
        del buffer[:]
        buffer += head
        buffer += body
        socket = sockets[number % clients]
        in_flight.send(socket, [buffer, aux], buffer)
        del buffer
        in_flight.release()
        until(lambda: not in_flight.is_full(socket), within=60, what="the reader reads")  # noqa: B023
    for reader in readers:
        reader.join(120)
    assert [reader.bad for reader in readers] == [[], [], []]
    assert [reader.read for reader in readers] == [messages // clients] * clients
    assert reused > messages // 4
    until(lambda: in_flight.release() or not in_flight.has_waiting())
    assert 0 < len(pool) <= clients + 1
    for socket in sockets:
        assert in_flight.bytes_in_flight(socket) <= WATERMARK
        in_flight.forget(socket)
        close(socket)


def test_a_small_frame_is_copied_and_its_buffer_is_free_at_once(way: Way) -> None:
    pull, push = way
    pool = BufferPool(2)
    in_flight = InFlight(1 << 30, pool)
    buffer = bytearray(b"small")
    in_flight.send(push, [buffer], buffer)
    assert len(pool) == 1
    assert pool.take() is buffer
    buffer[:] = b"other"
    assert pull.recv() == b"small"
    assert not in_flight.has_waiting()


def test_a_buffer_waits_for_the_slowest_frame_of_its_message(way: Way) -> None:
    """The large auxiliary frame of a first message keeps the buffers of both messages away from the pool."""
    pull, push = way
    pool = BufferPool(3)
    in_flight = InFlight(1 << 30, pool)
    ahead = bytes(32 << 20)
    first, second = bytearray(b"head"), bytearray(ZERO_COPY_BYTES)
    in_flight.send(push, [first, ahead], first)
    in_flight.send(push, [second, b"tail"], second)
    in_flight.release()
    assert len(pool) == 0
    assert in_flight.bytes_in_flight(push) == 4 + len(ahead) + len(second) + 4
    assert [len(frame) for frame in pull.recv_multipart()] == [4, len(ahead)]
    assert [len(frame) for frame in pull.recv_multipart()] == [len(second), 4]
    until(lambda: in_flight.release() or len(pool) == 2)
    assert in_flight.bytes_in_flight(push) == 0


def test_copied_bytes_are_counted_until_they_have_left(way: Way) -> None:
    pull, push = way
    in_flight = InFlight(8 << 20, BufferPool(1))
    number = 0
    while not in_flight.is_full(push):
        in_flight.send(push, [b"%08d" % number, b"x" * 1000])
        number += 1
    assert 8 << 20 <= in_flight.bytes_in_flight(push) < (8 << 20) + 2000
    for expected in range(number):
        assert pull.recv_multipart() == [b"%08d" % expected, b"x" * 1000]
    until(lambda: in_flight.release() or not in_flight.has_waiting())
    assert in_flight.bytes_in_flight(push) < WATERMARK
    assert not in_flight.is_full(push)


def test_a_small_limit_is_watched_in_small_steps(way: Way) -> None:
    pull, push = way
    in_flight = InFlight(64 << 10, BufferPool(1))
    sent = 0
    while not in_flight.is_full(push):  # only once the kernel's own buffers are full
        in_flight.send(push, [b"x" * 1000])
        sent += 1
    for _ in range(sent):
        pull.recv()
    until(lambda: not in_flight.is_full(push))
    assert in_flight.bytes_in_flight(push) <= 8 << 10


def test_clients_are_counted_one_by_one(way: Way) -> None:
    _, push = way
    other_pull = bind_pull("tcp://127.0.0.1:0")
    other = connect_push(bound_address(other_pull), linger_ms=0)
    in_flight = InFlight(1000, BufferPool(1))
    in_flight.send(push, [b"x" * 1500])
    assert in_flight.bytes_in_flight(other) == 0
    assert not in_flight.is_full(other)
    in_flight.forget(push)
    assert in_flight.bytes_in_flight(push) == 0
    close(other)
    close(other_pull)


def test_a_socket_that_takes_nothing_is_a_bug_of_ours() -> None:
    bound = context().socket(zmq.PUSH)  # bound and without a peer: it has nowhere to put a message
    bound.bind("tcp://127.0.0.1:0")
    with pytest.raises(InternalError, match="refused"):
        InFlight(1000, BufferPool(1)).send(bound, [b"x"])
    close(bound)


def test_the_pool_keeps_few_and_no_large_buffers() -> None:
    pool = BufferPool(2)
    for _ in range(5):
        pool.give(bytearray(10))
    pool.give(bytearray(MAX_POOLED_BYTES + 1))
    assert len(pool) == 2
    taken = [pool.take() for _ in range(3)]
    assert len({id(buffer) for buffer in taken}) == 3
    pool.give(bytearray(MAX_POOLED_BYTES + 1))
    assert len(pool) == 0
