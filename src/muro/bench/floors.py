"""The floor and the shaped floor: what a round trip costs at the least, measured with two bare processes.

The frames are those of a real utility call and its answer, so that sizes agree; see `transport.floor` for what
is and what is not in the loop.
"""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import Any

from muro.child.context import ChildContext
from muro.errors import StartupError
from muro.launch.spawn import spawn
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.transport.floor import FloorClient, open_floor, serve
from muro.wire.codec import OutputEncoder, RequestEncoder
from muro.wire.control import UtilityRequest
from muro.wire.output import EngineCoreOutputs, UtilityOutput
from muro.wire.releases import NEWEST

METHOD = "is_sleeping"
"""The operation whose round trip is measured; the engine's host answers it without touching the engine."""

START_TIMEOUT_MS = 30_000


def utility_frames() -> tuple[list[bytes], list[bytes]]:
    """Frames of the call (without the identity in front) and of its answer."""
    call = RequestEncoder(NEWEST).call(UtilityRequest(0, 1 << 62, METHOD, []))
    answer = EngineCoreOutputs(timestamp=1234567.875, utility_output=UtilityOutput(1 << 62, None, [None, False]))
    reply = OutputEncoder(NEWEST).encode(answer, bytearray())
    return [bytes(frame) for frame in call], [bytes(frame) for frame in reply]


def run_server(context: ChildContext) -> int:
    """Child entry: the engine's side of a floor."""
    settings: dict[str, Any] = context.payload
    reply = [bytes.fromhex(frame) for frame in settings["reply"]]
    serve(settings["input"], settings["output"], b"\0\0", reply, shaped=settings["shaped"])
    return 0


class Floor:
    """One pair of bare processes. `with Floor(shaped=...) as floor: floor.measure(1000)`."""

    def __init__(self, *, shaped: bool) -> None:
        self._shaped = shaped
        self._stack = contextlib.ExitStack()
        self._client: FloorClient | None = None
        self.samples: list[float] = []
        """Seconds of each round trip measured so far."""

    def __enter__(self) -> Floor:
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(EndpointDirectory())
            request, reply = utility_frames()
            addresses = {role: ipc_endpoint(directory, role) for role in ("input", "output")}
            payload = {**addresses, "reply": [frame.hex() for frame in reply], "shaped": self._shaped}
            child = spawn("muro.bench.floors:run_server", payload, title=["floor"], name="the floor")
            stack.callback(child.close)
            client = open_floor(addresses["input"], addresses["output"], request)
            stack.callback(client.close)
            if not client.accept(START_TIMEOUT_MS):
                raise StartupError(f"the floor's other process did not come: {child.death()}", pid=child.pid)
            self._client = client
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._client = None
        self._stack.close()

    def measure(self, rounds: int) -> None:
        """Make so many round trips, one after the other, and keep their times."""
        if self._client is None:
            raise ValueError("the floor is not open")
        round_trip, samples = self._client.round_trip, self.samples
        for _ in range(rounds):
            start = perf_counter()
            round_trip()
            samples.append(perf_counter() - start)
