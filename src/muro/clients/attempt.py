"""One request on its way through one engine, and where its outputs go. Only data."""

from __future__ import annotations

from typing import Protocol

from muro.clients.engine import KnownEngine
from muro.errors import MuroError
from muro.ids import RequestId, WireId
from muro.wire.output import EngineCoreOutput


class Sink(Protocol):
    """Where the outputs of one request go."""

    def put(self, output: EngineCoreOutput) -> None: ...

    def fail(self, error: MuroError) -> None: ...


class Attempt:
    """One request on its way through one engine."""

    __slots__ = ("engine", "request_id", "sink", "wire_id")

    def __init__(self, request_id: RequestId, wire_id: WireId, engine: KnownEngine, sink: Sink | None) -> None:
        self.request_id = request_id
        self.wire_id = wire_id
        self.engine = engine
        self.sink = sink
