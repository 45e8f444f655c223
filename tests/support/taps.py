"""`muro wire` as its users run it, and both ends of a wire made of bare sockets."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from muro.probe.reading import Message, Reader
from muro.probe.recording import opened
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Socket,
    bind_pull,
    bind_router,
    bind_xpub,
    bound_address,
    close,
    connect_dealer,
    connect_push,
    connect_xsub,
    receive_nowait,
    send_nowait,
)
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses, EngineHandshake, Init, encode_init
from tests.support.programs import ROOT, environment
from tests.support.wires import RESPONSE

HERE = "tcp://127.0.0.1:0"
PATIENCE = 20.0


class Tapped:
    """A `muro wire tap` that runs."""

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self.process = process
        self.address = address
        self.report = ""
        """What it printed at its end."""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def end(self) -> str:
        """Press Ctrl-C and wait; gives what it printed since it began."""
        if not self.report:
            self.process.send_signal(signal.SIGINT)
            out, err = self.process.communicate(timeout=PATIENCE)
            assert self.process.returncode == 0, err
            self.report = out
        return self.report


@contextlib.contextmanager
def tapped(to: str, record: Path | None = None, *flags: str, listen: str = HERE) -> Iterator[Tapped]:
    """A tap between engines and the front-end that is, or will be, at `to`."""
    more = [] if record is None else ["--record", str(record)]
    process = subprocess.Popen(
        [sys.executable, "-m", "muro", "wire", "tap", "--listen", listen, "--to", to, *more, *flags],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("engines dial "), line + process.stderr.read()
        yield Tapped(process, line.split()[2].rstrip(";"))
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
        process.stdout.close()
        process.stderr.close()


def recorded(path: Path) -> list[Message]:
    """The messages of a recording."""
    with opened(str(path)) as recording:
        return list(map(Reader().read, recording.records()))


def heard(socket: Socket, within: float = PATIENCE) -> list[bytes]:
    """The next message of a socket."""
    found: list[list[bytes]] = []

    def read() -> None:
        if (frames := receive_nowait(socket)) is not None:
            found.append([bytes(frame) for frame in frames])

    pump = Pump()
    pump.add(socket, read)
    while not found:
        assert pump.poll(int(within * 1000)), f"nothing was heard for {within} s"
    return found[0]


class Ends:
    """Both ends of a wire, made of bare sockets: a front-end with some clients, and an engine.

    With a coordinator if that is wanted; nothing is checked by anybody. `limit`: messages that wait at a reader.
    """

    def __init__(self, clients: int = 1, rank: int = 0, *, coordinator: bool = False, limit: int = 0) -> None:
        self.identity = identity_of(rank)
        self.handshake = bind_router(HERE)
        self.inputs = [bind_router(HERE) for _ in range(clients)]
        self.outputs = [bind_pull(HERE, receive_limit=limit) for _ in range(clients)]
        self._limit = limit
        self.publisher = bind_xpub(HERE) if coordinator else None
        self.collector = bind_pull(HERE) if coordinator else None
        self.engine_handshake: Socket | None = None
        self.engine_inputs: list[Socket] = []
        self.engine_outputs: list[Socket] = []
        self.engine_gate: Socket | None = None
        self.engine_report: Socket | None = None
        self.init = Init(
            Addresses(
                [bound_address(socket) for socket in self.inputs],
                [bound_address(socket) for socket in self.outputs],
                None if self.publisher is None else bound_address(self.publisher),
                None if self.collector is None else bound_address(self.collector),
                "tcp://127.0.0.1:9",
            ),
            {"data_parallel_size": 2},
        )

    @property
    def address(self) -> str:
        return bound_address(self.handshake)

    def join(self, dialled: str) -> Init:
        """The engine dials, and is led to READY; gives the INIT that it saw."""
        return self.lead(self.dial(dialled))

    def dial(self, dialled: str) -> EngineHandshake:
        """The engine dials, and says HELLO."""
        engine = EngineHandshake(local=False, headless=True)
        self.engine_handshake = connect_dealer(dialled, self.identity)
        self.engine_inputs, self.engine_outputs = [], []
        send_nowait(self.engine_handshake, [engine.hello()])
        return engine

    def lead(self, engine: EngineHandshake) -> Init:
        """The engine's HELLO is heard, and it is led to READY; gives the INIT that it saw."""
        assert self.engine_handshake is not None
        assert heard(self.handshake) == [self.identity, EngineHandshake(local=False, headless=True).hello()]
        send_nowait(self.handshake, [self.identity, encode_init(self.init)])
        init = engine.receive(heard(self.engine_handshake)[0])
        for address in init.addresses.inputs:
            self.engine_inputs.append(connect_dealer(address, self.identity, linger_ms=0, receive_limit=self._limit))
        for address in init.addresses.outputs:
            self.engine_outputs.append(connect_push(address, linger_ms=0))
        for client, socket in enumerate(self.engine_inputs):
            send_nowait(socket, [RESPONSE.encode()])
            assert heard(self.inputs[client]) == [self.identity, RESPONSE.encode()]
        if init.addresses.coordinator_input is not None and init.addresses.coordinator_output is not None:
            self.engine_gate = connect_xsub(init.addresses.coordinator_input, self.identity)
            self.engine_report = connect_push(init.addresses.coordinator_output, linger_ms=0)
        ready = engine.ready()
        send_nowait(self.engine_handshake, [ready])
        assert heard(self.handshake) == [self.identity, ready]
        return init

    def to_engine(self, client: int, *frames: bytes) -> None:
        assert send_nowait(self.inputs[client], [self.identity, *frames])

    def to_front_end(self, client: int, *frames: bytes) -> None:
        assert send_nowait(self.engine_outputs[client], frames)

    def end_engine(self) -> None:
        """The engine closes everything at once."""
        ours = [self.engine_handshake, *self.engine_inputs, *self.engine_outputs, self.engine_gate, self.engine_report]
        for socket in ours:
            if socket is not None:
                close(socket, 0)

    def end_front_end(self) -> None:
        """The front-end closes everything at once."""
        for socket in (self.handshake, *self.inputs, *self.outputs, self.publisher, self.collector):
            if socket is not None:
                close(socket, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end_engine()
        self.end_front_end()


def pack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)
