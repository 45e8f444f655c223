"""Sessions as tests need them: made, asked and read in few words."""

from typing import Any

from muro.clients.engine import KnownEngine
from muro.clients.session import Message, Session
from muro.errors import MuroError
from muro.ids import EngineRank
from muro.wire.codec import RequestDecoder
from muro.wire.control import AbortRequest, UtilityRequest
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest
from tests.support.asking import ask


class Sink:
    def __init__(self) -> None:
        self.outputs: list[EngineCoreOutput] = []
        self.errors: list[MuroError] = []

    def put(self, item: EngineCoreOutput) -> None:
        self.outputs.append(item)

    def fail(self, error: MuroError) -> None:
        self.errors.append(error)

    @property
    def endings(self) -> int:
        return len(self.errors) + sum(item.finish_reason is not None for item in self.outputs)


def new_session(ranks: int = 1, nonce: str = "n0nce", **more: Any) -> Session:
    engines = {EngineRank(rank): KnownEngine(EngineRank(rank)) for rank in range(ranks)}
    for engine in engines.values():
        engine.joined(None)
    return Session(engines, nonce=nonce, **more)


def read(message: Message) -> tuple[int, EngineCoreRequest | AbortRequest | UtilityRequest]:
    """Which rank a message goes to, and what an engine makes of it."""
    return int.from_bytes(message[0], "little"), RequestDecoder().decode(message[1:])


def add(session: Session, request_id: str = "a", sink: Sink | None = None, **fields: object) -> EngineCoreRequest:
    request = ask(request_id)
    for name, value in fields.items():
        setattr(request, name, value)
    _, sent = read(session.add(request, sink, 5.0)[1])
    assert isinstance(sent, EngineCoreRequest)
    return sent


def batches(session: Session) -> list[EngineCoreOutput]:
    taken = []
    while (batch := session.take_batch()) is not None:
        taken += batch.outputs
    return taken
