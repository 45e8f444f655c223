"""The engine's side of the handshake against a real socket: what ends it, and what it says then."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muro.config import CurveKeys
from muro.errors import LocalProtocolError, RemoteProtocolError, StartupError
from muro.ids import EngineRank
from muro.process.join import Join
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.transport.gate import Gate
from muro.transport.keys import make_keys, new_pair, own_pair
from muro.transport.sockets import Dial, Socket, bind_router, bound_address, close, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses, Init, encode_init
from tests.support.deadline import until
from tests.support.elsewhere import free_port
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


def test_a_front_end_that_goes_before_its_answer_is_greeted_anew(stop: Wakeup) -> None:
    """HELLO went with its connection, so the next front-end at that address would never hear it."""
    address = f"tcp://127.0.0.1:{free_port()}"
    front = bind_router(address)
    join = Join(address, rank=RANK, local=False, headless=True, stop=stop)
    found: list[Init | None] = []
    thread = threading.Thread(target=lambda: found.append(join.greet(None)))
    thread.start()
    try:
        first = receive(front)
        close(front, 0)
        front = bind_router(address, patience=5.0)
        again = receive(front)
        assert again == first and is_silent(front, 100)
        assert send_nowait(front, [again[0], INIT])
        thread.join()
        join.ready()
        assert b"READY" in receive(front)[1]
    finally:
        stop.set()
        thread.join()
        join.close()
        close(front, 0)
    assert found[0] is not None


def test_whose_key_is_let_in_later_is_heard_then(stop: Wakeup, tmp_path: Path) -> None:
    """libzmq does not dial again where a key was refused."""
    make_keys(str(tmp_path / "front"))
    make_keys(str(tmp_path / "engine"))
    gate = Gate(str(tmp_path / "front")).open()
    front = bind_router("tcp://127.0.0.1:0", guard=gate.guard)
    server, mine = own_pair(str(tmp_path / "front"))[0], own_pair(str(tmp_path / "engine"))
    dial = Dial(CurveKeys(server, *mine))
    join = Join(bound_address(front), rank=RANK, local=False, headless=True, stop=stop, dial=dial)
    thread = threading.Thread(target=lambda: join.greet(None))
    thread.start()
    try:
        until(lambda: gate.refused > 0)
        shutil.copy(tmp_path / "engine" / "muro.key", tmp_path / "front" / "peers" / "engine.key")
        assert receive(front)[0] == IDENTITY
    finally:
        stop.set()
        thread.join()
        join.close(lost=True)
        close(front, 0)
        gate.close()


def test_what_is_in_the_way_is_told(stop: Wakeup, tmp_path: Path) -> None:
    """Its key is not on the front-end's list; what listens there is no front-end; or no front-end with these keys."""
    make_keys(str(tmp_path))
    gate = Gate(str(tmp_path)).open()
    guarded, plain = bind_router("tcp://127.0.0.1:0", guard=gate.guard), bind_router("tcp://127.0.0.1:0")
    server, mine = own_pair(str(tmp_path))[0], new_pair()
    try:
        for front, key, words in (
            (guarded, server, "refuses the key"),
            (guarded, new_pair()[0], "other keys"),
            (plain, server, "other keys"),
        ):
            dial = Dial(CurveKeys(key, *mine))
            join = Join(bound_address(front), rank=RANK, local=False, headless=True, stop=stop, dial=dial)
            with pytest.raises(StartupError, match=words):
                join.greet(0.5)
            join.close(lost=True)
    finally:
        close(guarded, 0)
        close(plain, 0)
        gate.close()
