"""A front-end's sockets without sockets: a minimal engine in the same thread, and a clock that only waiting moves."""

from collections import deque
from collections.abc import Sequence

from muro.probe.check.engine_exam import HANDSHAKE, Heard
from muro.testing.broken.engine import Died, EngineHooks, MinimalEngine, Out, death_notices
from muro.wire.frames import Frame
from muro.wire.handshake import Addresses, decode_init

STEP_S = 0.001


class MemoryEngineLink:
    """What `EngineLink` promises, with an engine that dials at once."""

    def __init__(self, hooks: EngineHooks, clients: int = 2) -> None:
        self.addresses = Addresses([f"in-{n}" for n in range(clients)], [f"out-{n}" for n in range(clients)])
        self._engine = MinimalEngine(hooks, self.now, clients=clients)
        self._heard: deque[Heard] = deque()
        self._time = 0.0
        self._alive = True
        if (hello := self._engine.hello()) is not None:
            self._heard.append(Heard(HANDSHAKE, False, [self._engine.identity, hello]))

    def send(self, client: int, identity: bytes, frames: Sequence[Frame]) -> bool:
        if not self._alive:
            return False
        if client == HANDSHAKE:
            self._join(bytes(frames[0]))
            return True
        try:
            self._take(self._engine.receive(client, list(frames)))
        except Died as died:
            self._take(death_notices(died.told))
            self._alive = False
        return True

    def hear(self, within: float) -> Heard | None:
        end = self._time + within
        while not self._heard and self._alive and self._engine.busy and self._time < end:
            self._time += STEP_S
            self._take(self._engine.step())
        if not self._heard:
            self._time = end
        return self._heard.popleft() if self._heard else None

    def now(self) -> float:
        return self._time

    def terminate(self) -> bool:
        try:
            self._take(self._engine.stop())
        except Died as died:
            self._take(death_notices(died.told))
        self._alive = False
        return True

    def ended(self, within: float) -> bool:
        return not self._alive

    def _join(self, init: bytes) -> None:
        addresses = decode_init(init).addresses
        for client in range(len(addresses.inputs)):
            if (response := self._engine.ready_response(client)) is not None:
                self._heard.append(Heard(client, False, [self._engine.identity, response]))
        if (ready := self._engine.ready()) is not None:
            self._heard.append(Heard(HANDSHAKE, False, [self._engine.identity, ready]))

    def _take(self, messages: Sequence[Out]) -> None:
        self._heard.extend(Heard(client, True, list(frames)) for client, frames in messages)
