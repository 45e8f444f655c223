"""The engine's side of the handshake against a real socket: what ends it, and what it says then."""

import threading
from collections.abc import Iterator

import pytest

from muro.errors import LocalProtocolError, RemoteProtocolError, StartupError
from muro.ids import EngineRank
from muro.process.join import Join
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.transport.sockets import Socket, bind_router, bound_address, close, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses, Init, encode_init
from tests.support.hosted import is_silent, receive

RANK = EngineRank(258)
IDENTITY = identity_of(RANK)
INIT = encode_init(Init(Addresses(["ipc:///i"], ["ipc:///o"])))


@pytest.fixture
def front() -> Iterator[Socket]:
    with EndpointDirectory() as directory:
        socket = bind_router(ipc_endpoint(directory, "handshake"))
        yield socket
        close(socket, 0)


@pytest.fixture
def stop() -> Iterator[Wakeup]:
    with Wakeup() as stop:
        yield stop


@pytest.fixture
def join(front: Socket, stop: Wakeup) -> Iterator[Join]:
    join = Join(bound_address(front), rank=RANK, local=True, headless=False, stop=stop)
    yield join
    join.close()


class Front(threading.Thread):
    """Answers HELLO with what a test wants."""

    def __init__(self, socket: Socket, *answer: bytes) -> None:
        super().__init__()
        self._socket = socket
        self._answer = answer
        self.heard: tuple[bytes, ...] = ()

    def run(self) -> None:
        self.heard = tuple(bytes(frame) for frame in receive(self._socket))
        send_nowait(self._socket, [self.heard[0], *self._answer])


def greet(join: Join, front: Socket, *answer: bytes) -> Init | None:
    thread = Front(front, *answer)
    thread.start()
    try:
        return join.greet(20)
    finally:
        thread.join()
        assert thread.heard[0] == b"\x02\x01", "the rank, two bytes, the small one first"


def test_hello_init_ready(join: Join, front: Socket) -> None:
    init = greet(join, front, INIT)
    assert init is not None and init.addresses.inputs == ["ipc:///i"]
    join.ready()
    identity, ready = receive(front)
    assert identity == IDENTITY and b"READY" in ready


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((b"\xc1",), "INIT cannot be read"),
        ((b"\x80",), "INIT cannot be read"),
        ((INIT, INIT), "INIT of 2 frames"),
        ((b"",), "INIT cannot be read"),
    ],
    ids=["no msgpack", "no addresses", "two frames", "empty"],
)
def test_what_is_no_init_ends_the_start(join: Join, front: Socket, answer: tuple[bytes, ...], says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        greet(join, front, *answer)


def test_nobody_answers(join: Join, front: Socket) -> None:
    with pytest.raises(StartupError, match=r"engine 258 said HELLO to ipc://.* and got no INIT in 0\.02 s") as caught:
        join.greet(0.02)
    assert caught.value.rank == RANK and caught.value.phase == "handshake"


def test_time_is_what_the_clock_says(join: Join) -> None:
    times = iter([0.0, 301.0])
    with pytest.raises(StartupError, match="in 300 s"):
        join.greet(300, clock=lambda: next(times))


def test_a_stop_ends_the_wait(join: Join, front: Socket, stop: Wakeup) -> None:
    stop.set()
    assert join.greet(20) is None


def test_hello_waits_for_a_front_end_that_comes_later(stop: Wakeup) -> None:
    with EndpointDirectory() as directory:
        address = ipc_endpoint(directory, "handshake")
        join = Join(address, rank=RANK, local=True, headless=False, stop=stop)
        found: list[Init | None] = []
        thread = threading.Thread(target=lambda: found.append(join.greet(20)))
        thread.start()
        front = bind_router(address)
        try:
            identity, _ = receive(front)
            assert send_nowait(front, [identity, INIT])
            thread.join()
        finally:
            join.close()
            close(front, 0)
    assert found[0] is not None


def test_ready_comes_only_after_init(join: Join, stop: Wakeup, front: Socket) -> None:
    join.ready()  # nothing to say it on yet
    stop.set()
    join.greet(20)
    receive(front)
    with pytest.raises(LocalProtocolError, match="READY is out of turn"):
        join.ready()
    assert is_silent(front, 0)
