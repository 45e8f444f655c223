import os
import socket as plain
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from muro.errors import ConfigError
from muro.transport.context import flush
from muro.transport.endpoint import tcp_endpoint
from muro.transport.pump import Pump
from muro.transport.sockets import (
    LARGE_FRAME,
    Frame,
    Socket,
    bind_pull,
    bind_router,
    bind_xpub,
    bound_address,
    close,
    connect_dealer,
    connect_push,
    connect_xsub,
    context,
    receive_nowait,
    send_nowait,
)
from tests.support.deadline import until

LOOPBACK = "tcp://127.0.0.1:0"


def receive(socket: Socket) -> list[Frame]:
    """The next message, within five seconds."""
    got: list[list[Frame] | None] = []
    pump = Pump()
    pump.add(socket, lambda: got.append(receive_nowait(socket)))
    assert pump.poll(5000) == 1
    assert got[0] is not None
    return got[0]


@pytest.fixture
def router() -> Iterator[Socket]:
    socket = bind_router(LOOPBACK)
    yield socket
    close(socket)


def test_a_router_and_a_dealer_talk(router: Socket) -> None:
    dealer = connect_dealer(bound_address(router), b"\x01\x00")
    assert send_nowait(dealer, [b"hello", b""])
    assert receive(router) == [b"\x01\x00", b"hello", b""]
    assert send_nowait(router, [b"\x01\x00", b"\x00", b"payload"])
    assert receive(dealer) == [b"\x00", b"payload"]
    assert receive_nowait(dealer) is None
    close(dealer)


def test_a_message_to_nobody_is_refused_not_lost(router: Socket) -> None:
    assert not send_nowait(router, [b"\x07\x00", b"\x00", b"payload"])
    dealer = connect_dealer(bound_address(router), b"\x07\x00")
    until(lambda: send_nowait(router, [b"\x07\x00", b"again"]))
    assert receive(dealer) == [b"again"]
    close(dealer)


def test_an_address_can_be_bound_again_as_soon_as_its_socket_was_closed() -> None:
    """libzmq closes in another thread, a moment later."""
    socket = bind_router(LOOPBACK)
    address = bound_address(socket)
    for _ in range(50):
        close(socket)
        socket = bind_router(address, patience=5.0)
    with pytest.raises(ConfigError, match="another process listens there"):
        bind_router(address, patience=0.05)
    close(socket)


def test_small_frames_are_bytes_and_large_ones_lie_where_they_are(router: Socket) -> None:
    dealer = connect_dealer(bound_address(router), b"\x00\x00")
    large = os.urandom(LARGE_FRAME)
    send_nowait(dealer, [large[:-1], large, b""])
    _, small, big, empty = receive(router)
    assert (type(small), type(big), type(empty)) == (bytes, memoryview, bytes)
    assert small == large[:-1]
    assert big == large
    close(dealer)


def test_frames_may_be_reused_at_once(router: Socket) -> None:
    dealer = connect_dealer(bound_address(router), b"\x00\x00")
    buffer = bytearray(b"x" * (1 << 20))
    send_nowait(dealer, [memoryview(buffer)])
    buffer[:] = bytes(len(buffer))
    assert receive(router)[1] == b"x" * (1 << 20)
    close(dealer)


def test_a_push_takes_messages_before_anybody_listens(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/out"
    push = connect_push(address)
    assert send_nowait(push, [b"early"])
    pull = bind_pull(address)
    assert receive(pull) == [b"early"]
    close(push)
    close(pull)


def test_a_push_takes_any_number_of_messages(tmp_path: Path) -> None:
    push = connect_push(f"ipc://{tmp_path}/nobody", linger_ms=0)
    assert all(send_nowait(push, [b"x"]) for _ in range(5000))
    close(push)


@pytest.mark.parametrize("handover", [False, True])
def test_an_identity_is_taken_over_only_when_asked_for(handover: bool) -> None:
    with closing(bind_router(LOOPBACK, handover=handover)) as router:
        old = connect_dealer(bound_address(router), b"\x00\x00", linger_ms=0)
        send_nowait(old, [b"old"])
        assert receive(router)[1] == b"old"
        new = connect_dealer(bound_address(router), b"\x00\x00", linger_ms=0)
        send_nowait(new, [b"new"])
        pump = Pump()
        pump.add(router, lambda: None)
        assert bool(pump.poll(5000 if handover else 300)) is handover
        close(old)
        close(new)


def test_xpub_delivers_every_subscription() -> None:
    xpub = bind_xpub(LOOPBACK)
    ears = [connect_xsub(bound_address(xpub), bytes([rank, 0])) for rank in range(2)]
    for ear in ears:
        send_nowait(ear, [b"\x01"])
    assert [receive(xpub), receive(xpub)] == [[b"\x01"], [b"\x01"]]
    send_nowait(xpub, [b"READY"])
    for ear in ears:
        assert receive(ear) == [b"READY"]
        close(ear)
    close(xpub)


@pytest.mark.cases
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_fc25_both_families_and_names_are_bound_and_dialled(host: str) -> None:
    pull = bind_pull(tcp_endpoint(host))
    bound = bound_address(pull)
    port = int(bound.rpartition(":")[2])
    assert port > 0
    assert bound == tcp_endpoint("127.0.0.1" if host == "localhost" else host, port)
    push = connect_push(tcp_endpoint(host, port))
    send_nowait(push, [b"x"])
    assert receive(pull) == [b"x"]
    close(push)
    close(pull)


@pytest.mark.cases
def test_fc23_ports_are_bound_before_they_are_named() -> None:
    sockets = [bind_router(LOOPBACK) for _ in range(64)]
    assert len({bound_address(socket) for socket in sockets}) == 64
    for socket in sockets:
        close(socket)


@pytest.mark.cases
def test_fc54_loopback_is_not_reachable_from_outside(router: Socket) -> None:
    port = int(bound_address(router).rpartition(":")[2])
    listening = [
        bytes.fromhex(fields[1].partition(":")[0])
        for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[3] == "0A" and int(fields[1].partition(":")[2], 16) == port
    ]
    assert listening == [plain.inet_aton("127.0.0.1")[::-1]]


def test_an_address_in_use_is_named(router: Socket) -> None:
    taken = bound_address(router)
    with pytest.raises(ConfigError, match=f"{taken}.*another process listens"):
        bind_pull(taken)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match="not one of this machine"):
        bind_pull("tcp://192.0.2.1:0")


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}/gone/input"):
        bind_pull(f"ipc://{tmp_path}/gone/input")


@pytest.mark.parametrize("make", [bind_pull, bind_router, bind_xpub, connect_push])
def test_nonsense_is_refused_and_leaves_no_socket(make: object) -> None:
    before = len(context()._sockets)
    with pytest.raises(ConfigError):
        make("nonsense")  # type: ignore[operator]
    assert len(context()._sockets) == before


def test_a_frame_over_the_limit_costs_its_sender_the_connection() -> None:
    with closing(bind_router(LOOPBACK, max_bytes=1000)) as router:
        dealer = connect_dealer(bound_address(router), b"\x00\x00", linger_ms=0)
        send_nowait(dealer, [b"x" * 1001])
        send_nowait(dealer, [b"lost with it or not"])
        close(dealer)
        other = connect_dealer(bound_address(router), b"\x01\x00")
        send_nowait(other, [b"x" * 1000])
        messages = [receive(router)]
        while messages[-1][0] != b"\x01\x00":
            messages.append(receive(router))
        assert messages[-1][1] == b"x" * 1000
        assert all(len(message[1]) <= 1000 for message in messages)
        close(other)


def test_one_context_per_process_also_from_many_threads() -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(context())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {context()}


def test_flush_waits_for_what_closed_sockets_had_to_say(tmp_path: Path) -> None:
    """The reader comes after the writer has closed and begun to flush."""
    address = f"ipc://{tmp_path}/late"
    push = connect_push(address, linger_ms=10_000)
    for number in range(100):
        send_nowait(push, [b"%d" % number])
    close(push)
    with zmq.Context() as other:
        reader: Socket = other.socket(zmq.PULL)
        flushed: list[bool] = []
        waiting = threading.Thread(target=lambda: flushed.append(flush(10)))
        waiting.start()
        reader.bind(address)
        assert [reader.recv() for _ in range(100)] == [b"%d" % number for number in range(100)]
        waiting.join()
        reader.close()
    assert flushed == [True]


def test_flush_gives_up_in_time_and_a_new_context_serves(tmp_path: Path) -> None:
    push = connect_push(f"ipc://{tmp_path}/nobody", linger_ms=300)
    send_nowait(push, [b"x"])
    old = context()
    close(push)
    assert not flush(0.01)
    assert context() is not old
    pull = bind_pull(LOOPBACK)
    close(pull)
    until(lambda: old.closed)


def test_flush_without_a_context_is_nothing() -> None:
    assert flush(5)
    assert flush(5)
