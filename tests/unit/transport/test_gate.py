"""Who may dial: keys on the list, and nobody else, in either direction."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from muro.config import CurveKeys
from muro.transport.gate import Gate
from muro.transport.keys import PEERS, PUBLIC_FILE, make_keys, new_pair, own_pair
from muro.transport.pump import Pump
from muro.transport.sockets import (
    PLAIN,
    Dial,
    Socket,
    bind_pull,
    bind_router,
    bound_address,
    close,
    connect_dealer,
    connect_push,
    receive_nowait,
    send_nowait,
)
from tests.support.deadline import until

LOOPBACK = "tcp://127.0.0.1:0"


class Machines:
    """A front-end and an engine with keys of their own, neither of which knows the other yet."""

    def __init__(self, root: Path) -> None:
        self.front, self.engine = root / "front", root / "engine"
        make_keys(str(self.front))
        make_keys(str(self.engine))

    def introduce(self) -> None:
        shutil.copy(self.engine / "muro.key", self.front / "peers" / "engine.key")

    @property
    def dial(self) -> Dial:
        server, _ = own_pair(str(self.front))
        return Dial(CurveKeys(server, *own_pair(str(self.engine))))


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.fixture
def kept() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def gate_of(machines: Machines, kept: ExitStack) -> Gate:
    gate = Gate(str(machines.front)).open()
    kept.callback(gate.close)
    return gate


def router(gate: Gate, kept: ExitStack) -> Socket:
    socket = bind_router(LOOPBACK, guard=gate.guard)
    kept.callback(close, socket, 0)
    return socket


def dialled(address: str, dial: Dial, kept: ExitStack, identity: bytes = b"\0\0") -> Socket:
    socket = connect_dealer(address, identity, dial=dial, linger_ms=0)
    kept.callback(close, socket, 0)
    assert send_nowait(socket, [b"hello"])
    return socket


def heard(socket: Socket, within_ms: int = 5000) -> list[bytes] | None:
    got: list[list[bytes]] = []
    pump = Pump()
    pump.add(socket, lambda: got.append([bytes(f) for f in receive_nowait(socket) or []]))
    pump.poll(within_ms)
    return got[0] if got else None


def test_who_is_on_the_list_comes_in(machines: Machines, kept: ExitStack) -> None:
    machines.introduce()
    bound = router(gate_of(machines, kept), kept)
    engine = dialled(bound_address(bound), machines.dial, kept)
    assert heard(bound) == [b"\0\0", b"hello"]
    assert send_nowait(bound, [b"\0\0", b"back"])
    assert heard(engine) == [b"back"]


def test_outputs_too(machines: Machines, kept: ExitStack) -> None:
    machines.introduce()
    pull = bind_pull(LOOPBACK, guard=gate_of(machines, kept).guard)
    kept.callback(close, pull, 0)
    for dial in (PLAIN, machines.dial):
        push = connect_push(bound_address(pull), dial=dial, linger_ms=0)
        kept.callback(close, push, 0)
        assert send_nowait(push, [b"in the clear" if dial is PLAIN else b"with keys"])
    assert heard(pull) == [b"with keys"]


def test_who_is_not_stays_out_and_is_named(
    machines: Machines, kept: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    gate = gate_of(machines, kept)
    bound = router(gate, kept)
    dialled(bound_address(bound), machines.dial, kept)
    with caplog.at_level(logging.WARNING):
        until(lambda: gate.refused)
    assert heard(bound, 200) is None
    assert own_pair(str(machines.engine))[0] in caplog.text


def test_others_stay_out(machines: Machines, kept: ExitStack) -> None:
    """In the clear; with the wrong key of the server; with a key pair that is none of ours."""
    machines.introduce()
    gate = gate_of(machines, kept)
    bound = router(gate, kept)
    server, right = own_pair(str(machines.front))[0], own_pair(str(machines.engine))
    for number, dial in enumerate(
        (PLAIN, Dial(CurveKeys(new_pair()[0], *right)), Dial(CurveKeys(server, *new_pair())))
    ):
        dialled(bound_address(bound), dial, kept, bytes([number, 1]))
    until(lambda: gate.refused)
    dialled(bound_address(bound), machines.dial, kept, b"\0\0")
    assert heard(bound) == [b"\0\0", b"hello"]
    assert heard(bound, 200) is None


def test_a_new_machine_needs_no_restart(machines: Machines, kept: ExitStack) -> None:
    gate = gate_of(machines, kept)
    bound = router(gate, kept)
    dialled(bound_address(bound), machines.dial, kept)
    until(lambda: gate.refused)
    machines.introduce()
    again = dialled(bound_address(bound), machines.dial, kept, b"\1\0")
    assert heard(bound) is not None and again


def test_a_key_that_was_replaced_in_its_file_stays_out(machines: Machines, kept: ExitStack, tmp_path: Path) -> None:
    machines.introduce()
    gate = gate_of(machines, kept)
    bound = router(gate, kept)
    dialled(bound_address(bound), machines.dial, kept)
    assert heard(bound) == [b"\0\0", b"hello"]
    (replaced,) = (machines.front / PEERS).iterdir()
    other = Machines(tmp_path / "other")
    replaced.write_bytes((other.engine / PUBLIC_FILE).read_bytes())
    dialled(bound_address(bound), machines.dial, kept, b"\1\0")
    until(lambda: gate.refused)
    server = own_pair(str(machines.front))[0]
    dialled(bound_address(bound), Dial(CurveKeys(server, *own_pair(str(other.engine)))), kept, b"\2\0")
    assert heard(bound) == [b"\2\0", b"hello"]


def test_a_list_that_cannot_be_read_stays_as_it_was_and_is_told_once(
    machines: Machines, kept: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    machines.introduce()
    gate = gate_of(machines, kept)
    bound = router(gate, kept)
    (machines.front / PEERS / "spoiled.key").write_text("no key")
    for number in range(3):
        dialled(bound_address(bound), machines.dial, kept, bytes([number, 1]))
        assert heard(bound) == [bytes([number, 1]), b"hello"]
    assert caplog.text.count("the keys of peers are as before") == 1


def test_each_gate_has_its_own_list(tmp_path: Path, kept: ExitStack) -> None:
    """Two clients in one process, with one thread that answers for both."""
    one, two = Machines(tmp_path / "one"), Machines(tmp_path / "two")
    one.introduce()
    two.introduce()
    gates = [gate_of(machines, kept) for machines in (one, two)]
    bound = [router(gate, kept) for gate in gates]
    crossed = CurveKeys(own_pair(str(two.front))[0], *own_pair(str(one.engine)))
    dialled(bound_address(bound[1]), Dial(crossed), kept, b"\1\0")
    until(lambda: gates[1].refused)
    gates[0].close()
    dialled(bound_address(bound[1]), two.dial, kept)
    assert heard(bound[1]) == [b"\0\0", b"hello"]


def test_when_nobody_answers_for_a_gate_it_is_shut(machines: Machines, kept: ExitStack) -> None:
    machines.introduce()
    gate = gate_of(machines, kept)
    bound = router(gate, kept)
    gate.close()
    dialled(bound_address(bound), machines.dial, kept)
    assert heard(bound, 300) is None


def test_a_gate_without_a_directory_lets_in_whom_it_admits_alone() -> None:
    gate = Gate(None).open()
    try:
        admitted, _ = new_pair()
        stranger, _ = new_pair()
        gate.admit(admitted)
        assert gate.callback("", admitted.encode()) and not gate.callback("", stranger.encode())
        assert gate.refused == 1 and gate.guard is not None and len(gate.public_key) == 40
    finally:
        gate.close()
