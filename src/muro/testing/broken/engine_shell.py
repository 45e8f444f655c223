"""The sockets of a minimal engine: dials a front-end and serves it until SIGTERM, or until the engine ends itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from muro.child.signals import StopSignals
from muro.testing.broken.engine import Died, EngineHooks, MinimalEngine, Out, death_notices
from muro.transport.context import flush
from muro.transport.pump import Pump
from muro.transport.sockets import Socket, close, connect_dealer, connect_push, receive_nowait, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.handshake import Addresses, decode_init

STEP_MS = 1
FLUSH_S = 4.0


def run_engine(address: str, hooks: EngineHooks) -> int:
    """Dial the handshake at `address` and serve. Returns the exit code."""
    with Wakeup() as stop, StopSignals(stop.set):
        shell = _Shell(address, MinimalEngine(hooks, time.monotonic, clients=1), stop)
        try:
            shell.join()
            shell.serve()
            return 0
        except Died as died:
            shell.send(death_notices(died.told))
            return 10
        finally:
            shell.close()
            flush(FLUSH_S)


class _Shell:
    """One engine and its sockets."""

    def __init__(self, address: str, engine: MinimalEngine, stop: Wakeup) -> None:
        self._address = address
        self._engine = engine
        self._pump = Pump()
        self._pump.add(stop.fileno(), self._stop)
        self._stopped = False
        self._addresses: Addresses | None = None
        self._handshake: Socket | None = None
        self._inputs: list[Socket] = []
        self._outputs: list[Socket] = []

    def join(self) -> None:
        """HELLO, INIT, ready responses, READY."""
        engine = self._engine
        self._handshake = connect_dealer(self._address, engine.identity)
        self._pump.add(self._handshake, self._greeted)
        if (hello := engine.hello()) is not None:
            send_nowait(self._handshake, [hello])
        while self._addresses is None and not self._stopped:
            self._pump.poll()
        if self._addresses is None:
            return
        for client, (inputs, outputs) in enumerate(zip(self._addresses.inputs, self._addresses.outputs, strict=True)):
            self._inputs.append(connect_dealer(inputs, engine.identity))
            self._outputs.append(connect_push(outputs))
            self._pump.add(self._inputs[client], partial(self._read, client))
            if (response := engine.ready_response(client)) is not None:
                send_nowait(self._inputs[client], [response])
        if (ready := engine.ready()) is not None:
            send_nowait(self._handshake, [ready])

    def serve(self) -> None:
        """Read, step, send, until stopped. Raises Died."""
        while not self._stopped:
            self._pump.poll(STEP_MS if self._engine.busy else None)
            self.send(self._engine.step())
        self.send(self._engine.stop())

    def send(self, messages: Sequence[Out]) -> None:
        for client, frames in messages:
            if client < len(self._outputs):
                send_nowait(self._outputs[client], frames)

    def close(self) -> None:
        for socket in [*self._inputs, *self._outputs, *([self._handshake] if self._handshake else [])]:
            close(socket)

    def _stop(self) -> None:
        self._stopped = True

    def _greeted(self) -> None:
        if self._handshake is not None and (frames := receive_nowait(self._handshake)) is not None:
            self._addresses = decode_init(bytes(frames[0])).addresses

    def _read(self, client: int) -> None:
        if (frames := receive_nowait(self._inputs[client])) is not None:
            self.send(self._engine.receive(client, frames))
