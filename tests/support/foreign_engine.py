"""An engine made of bare sockets, as another implementation of some release would be: it writes that release's layout,
says nothing of muro's own features, and keeps what it was sent.

It runs in a thread of the test and repeats its prompts, whole answers at once.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psutil

from muro.ids import EngineRank
from muro.transport.endpoint import parse_address
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, close, connect_dealer, connect_push, receive_nowait, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.codec import OutputEncoder, RequestDecoder
from muro.wire.control import AbortRequest, UtilityRequest
from muro.wire.frames import identity_of
from muro.wire.handshake import EngineHandshake, ReadyResponse
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, UtilityOutput
from muro.wire.releases import LAYOUTS
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import PrefillStats
from tests.support.deadline import until


class ForeignEngine:
    """Dials `address` and serves until `close`.

    `hangs_up`: after READY it closes the socket on which it has greeted, and sends its ready response when the
    connection is gone: so do vLLM's engines, though not always in this order.
    """

    def __init__(self, address: str, rank: int, release: str, hangs_up: bool = False) -> None:
        self._address = address
        self._rank = rank
        self._release = release
        self._hangs_up = hangs_up
        self._identity = identity_of(EngineRank(rank))
        self._handshake = EngineHandshake(local=False, headless=True)
        self._pump = Pump()
        self._stop = Wakeup()
        self._stopped = False
        self._sockets: list[Socket] = []
        self._decoder = RequestDecoder()
        self._encoder = OutputEncoder(LAYOUTS[release.rpartition(".")[0]])
        self._thread = threading.Thread(target=self._run, name=f"foreign-{rank}", daemon=True)
        self.adds: list[list[msgspec.Raw]] = []
        """Every ADD, as the elements of its array."""
        self.calls: list[str] = []

    def open(self) -> "ForeignEngine":
        self._stop.open()
        self._thread.start()
        return self

    def close(self) -> None:
        self._stopped = True
        self._stop.set()
        self._thread.join(10)
        self._stop.close()

    def _run(self) -> None:
        self._pump.add(self._stop.fileno(), lambda: None)
        self._greeter = self._kept(connect_dealer(self._address, self._identity))
        self._pump.add(self._greeter, self._join)
        send_nowait(self._greeter, [self._handshake.hello()])
        while not self._stopped:
            self._pump.poll()
        for socket in self._sockets:
            close(socket, 0)

    def _kept(self, socket: Socket) -> Socket:
        self._sockets.append(socket)
        return socket

    def _join(self) -> None:
        frames = receive_nowait(self._greeter)
        assert frames is not None
        init = self._handshake.receive(bytes(frames[0]))
        self._inputs = self._kept(connect_dealer(init.addresses.inputs[0], self._identity))
        self._outputs = self._kept(connect_push(init.addresses.outputs[0]))
        self._pump.add(self._inputs, self._take)
        ready = ReadyResponse(
            max_model_len=4096,
            num_gpu_blocks=64,
            block_size=16,
            dp_stats_address=None,
            dtype="bfloat16",
            vllm_version=self._release,
            world_size=1,
            data_parallel_size=1,
        )
        if self._hangs_up:
            send_nowait(self._greeter, [self._handshake.ready()])
            self._pump.remove(self._greeter)
            self._sockets.remove(self._greeter)
            close(self._greeter, 5000)
            until(lambda: not self._is_connected(), what="the front-end has closed the connection")
        send_nowait(self._inputs, [ready.encode()])
        if not self._hangs_up:
            send_nowait(self._greeter, [self._handshake.ready()])

    def _is_connected(self) -> bool:
        """Whether anybody in this process, where the front-end is too, has a connection at the handshake port."""
        port = parse_address(self._address).port
        return any(
            port in (end.port for end in (found.laddr, found.raddr) if end) and found.status != psutil.CONN_LISTEN
            for found in psutil.Process().net_connections("tcp")
        )

    def _take(self) -> None:
        frames = receive_nowait(self._inputs)
        assert frames is not None
        request = self._decoder.decode(frames)
        if isinstance(request, EngineCoreRequest):
            self.adds.append(msgspec.msgpack.decode(frames[1], type=list[msgspec.Raw]))
            self._answer(request)
        elif isinstance(request, UtilityRequest):
            self.calls.append(request.method)
            self._send(EngineCoreOutputs(utility_output=UtilityOutput(request.call_id, None, [None, None])))
        else:
            assert isinstance(request, AbortRequest)

    def _answer(self, request: EngineCoreRequest) -> None:
        params, prompt = request.sampling_params, request.prompt_token_ids
        assert params is not None and prompt is not None
        tokens = [prompt[n % len(prompt)] for n in range(params.max_tokens or 1)]
        prefill = PrefillStats(num_prompt_tokens=len(prompt), num_computed_tokens=len(prompt))
        output = EngineCoreOutput(request.request_id, tokens, finish_reason=FinishReason.LENGTH, prefill_stats=prefill)
        self._send(EngineCoreOutputs(outputs=[output]))

    def _send(self, message: EngineCoreOutputs) -> None:
        message.engine_index, message.timestamp = self._rank, time.monotonic()
        frames: list[Frame] = self._encoder.encode(message, bytearray())
        send_nowait(self._outputs, frames)


@contextmanager
def foreign_engines(address: str, *releases: str, hangs_up: bool = False) -> Iterator[list[ForeignEngine]]:
    """One for each release, by rank."""
    engines: list[ForeignEngine] = []
    try:
        for rank, release in enumerate(releases):
            engines.append(ForeignEngine(address, rank, release, hangs_up).open())
        yield engines
    finally:
        for engine in engines:
            engine.close()
