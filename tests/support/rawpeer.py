"""A front-end made of bare sockets: what another implementation of the wire looks like to our engine.

Binds the handshake socket and, for each client index, an input ROUTER and an output PULL. It says nothing of
muro's own features, so the engine treats it as a foreign peer. What it sends is checked by nobody.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from muro.config import ConnectConfig, EngineConfig
from muro.launch.plan import plan_launch
from muro.launch.shutdown import stop
from muro.launch.spawn import Child
from muro.launch.startup import start
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, bind_pull, bind_router, bound_address, close, receive_nowait, send_nowait
from muro.wire.codec import Marker, OutputDecoder, RequestEncoder
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, UtilityOutput
from muro.wire.releases import LAYOUTS, Layout
from muro.wire.request import EngineCoreRequest

ADD, ABORT, WAVE, UTILITY = b"\x00", b"\x01", b"\x02", b"\x03"
IDENTITY = identity_of(0)
PATIENCE = 20.0
"""Seconds that an answer may take before the test fails."""


class RawClient:
    """One client index of the front-end: speaks to the engine as its own process would."""

    def __init__(self, index: int, directory: str) -> None:
        self.index = index
        self.directory = directory
        self.input = bind_router(f"ipc://{directory}/i{index}")
        self.output = bind_pull(f"ipc://{directory}/o{index}")
        self.dead = False
        """Whether the death notice came."""
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, EngineCoreOutput] = {}
        """The last output of each request that has one."""
        self.endings: Counter[str] = Counter()
        self.times: list[float] = []
        """When the engine made each message with outputs, by its own clock."""
        self.on_output: Callable[[EngineCoreOutput], None] = lambda output: None
        """Called with every output."""
        self.answers: dict[int, UtilityOutput] = {}
        self._encoder = RequestEncoder()
        self._decoder = OutputDecoder(LAYOUTS["0.25"])
        self._pump = Pump()
        self._pump.add(self.output, self._take)
        self._calls = 1 << 63  # as Python front-ends do: above what fits into a signed integer

    def send(self, *frames: Frame) -> None:
        """Frames as they are, the type byte first."""
        assert send_nowait(self.input, [IDENTITY, *frames]), "the engine is not connected"

    def add(self, *requests: EngineCoreRequest) -> None:
        for request in requests:
            request.client_index = self.index
            self.send(*self._encoder.add(request))

    def reaches(self, request_ids: Iterable[str]) -> bool:
        """Whether the engine is connected; it is sent the abort of these."""
        return send_nowait(self.input, [IDENTITY, *self._encoder.abort(request_ids)])

    def abort(self, request_ids: Iterable[str]) -> None:
        self.send(*self._encoder.abort(request_ids))

    def call(self, method: str, *args: Any) -> UtilityOutput:
        """Call an operation and wait for the answer, whatever else comes."""
        self._calls += 1
        self.send(UTILITY, msgspec.msgpack.encode([self.index, self._calls, method, list(args)]))
        return self.answer(self._calls)

    def answer(self, call_id: int) -> UtilityOutput:
        self.read_until(lambda: call_id in self.answers)
        return self.answers.pop(call_id)

    def finish(self, *request_ids: str) -> list[EngineCoreOutput]:
        """Wait for the ends of these requests; gives their last outputs."""
        self.read_until(lambda: all(request_id in self.ended for request_id in request_ids))
        return [self.ended[request_id] for request_id in request_ids]

    def forget(self, request_id: str) -> None:
        """The id is going to be used again."""
        self.tokens.pop(request_id, None)
        self.ended.pop(request_id, None)
        self.endings.pop(request_id, None)

    def read_until(self, condition: Any, *, within: float = PATIENCE) -> None:
        while not condition():
            assert self._pump.poll(int(within * 1000)), f"client {self.index} hears nothing for {within} s"

    def read_all(self) -> None:
        """Take what has come."""
        while self._pump.poll(0):
            pass

    def await_ready(self, within: float = PATIENCE) -> None:
        """Wait for the engine's ready response; whoever owns the handshake gets that of client 0 with it."""
        heard: list[Sequence[Frame]] = []

        def read() -> None:
            if (frames := receive_nowait(self.input)) is not None:
                heard.append(frames)

        pump = Pump()
        pump.add(self.input, read)
        while not heard:
            assert pump.poll(int(within * 1000)), f"no ready response on the input socket of client {self.index}"
        assert bytes(heard[0][0]) == IDENTITY

    def close(self) -> None:
        close(self.input, 0)
        close(self.output, 0)

    def _take(self) -> None:
        frames = receive_nowait(self.output)
        assert frames is not None
        message = self._decoder.decode(frames)
        if isinstance(message, Marker):
            self.dead = True
            return
        self._read(message)

    def _read(self, message: EngineCoreOutputs) -> None:
        if message.utility_output is not None:
            self.answers[message.utility_output.call_id] = message.utility_output
        if message.outputs:
            self.times.append(message.timestamp)
        for output in message.outputs:
            assert output.request_id not in self.ended, f"news of {output.request_id} after its end"
            self.on_output(output)
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                self.ended[output.request_id] = output
                self.endings[output.request_id] += 1


class RawPeer:
    """The sockets of one front-end with some clients, and the engine behind them.

    `elsewhere` is how many more clients there are, in processes of their own: `RawClient(index, directory)`, made
    before `start`.
    """

    def __init__(self, clients: int, elsewhere: int = 0) -> None:
        self.directory = tempfile.mkdtemp(prefix="raw-")
        self._elsewhere = range(clients, clients + elsewhere)
        self.handshake = bind_router(f"ipc://{self.directory}/h")
        self.clients = [RawClient(index, self.directory) for index in range(clients)]
        self.engine: Child | None = None

    def start(self, engine: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
        config = ConnectConfig(
            engine=EngineConfig(engine=engine, options=options, **settings), startup_timeout=PATIENCE
        )
        addresses = Addresses(
            [bound_address(client.input) for client in self.clients]
            + [f"ipc://{self.directory}/i{index}" for index in self._elsewhere],
            [bound_address(client.output) for client in self.clients]
            + [f"ipc://{self.directory}/o{index}" for index in self._elsewhere],
        )
        plan = plan_launch(config, addresses, bound_address(self.handshake))
        started = start(plan, self.handshake, self.clients[0].input)
        (self.engine,) = started.children.values()
        for client in self.clients[1:]:
            client.await_ready()

    @property
    def child(self) -> Child:
        assert self.engine is not None
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            stop([self.engine], 10)
        for client in self.clients:
            client.close()
        close(self.handshake, 0)
        for name in os.listdir(self.directory):
            os.unlink(f"{self.directory}/{name}")
        os.rmdir(self.directory)


@contextmanager
def raw_peer(
    engine: str, clients: int = 1, *, settings: dict[str, Any] | None = None, **options: Any
) -> Iterator[RawPeer]:
    """An engine with a raw front-end; afterwards the engine must be alive still, unless the test ended it."""
    peer = RawPeer(clients)
    try:
        peer.start(engine, options, settings or {})
        yield peer
    finally:
        peer.close()


def add_frames(request: EngineCoreRequest, changes: dict[int | str, Any], layout: Layout | None = None) -> list[Frame]:
    """The frames of an ADD with wrong values, which no encoder of ours would write.

    `changes` has positions of the request, or keys of its sampling parameters.
    """
    kind, payload, *aux = RequestEncoder(layout or LAYOUTS["0.33"]).add(request)
    values = msgspec.msgpack.decode(payload)
    for key, value in changes.items():
        if isinstance(key, int):
            values.extend([None] * (key + 1 - len(values)))
            values[key] = value
        else:
            values[3][key] = value
    return [kind, pack(values), *aux]


def pack(value: Any) -> bytes:
    """msgpack of plain values, as any peer would write them."""
    return msgspec.msgpack.encode(value)


def failed(output: EngineCoreOutput) -> bool:
    """Whether a request ended with ERROR."""
    return output.finish_reason == FinishReason.ERROR
