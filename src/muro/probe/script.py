"""A recording as something to be played again: who asked what and when, and what answer came. Pure.

Engines go by identity: one that joined again under the same one goes on where it was. What could not be read is played
by the front-end's side as it came, if all of it was recorded, and else counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from muro.errors import ConfigError
from muro.probe.reading import Kind, Message
from muro.probe.recording import Direction, Record, Role
from muro.wire.control import UtilityRequest
from muro.wire.frames import RequestType
from muro.wire.handshake import Init
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, UtilityOutput
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

MADE_UP_BELOW: Final = 997
"""Made-up token ids lie in 1 ... this, which every vocabulary has."""

_PROMPT: Final = "prompt_token_ids"
_TOKENS: Final = "new_token_ids"


class Asked(msgspec.Struct):
    """A recorded request and its answer. Times in seconds since the start of the recording."""

    number: int
    at: float
    peer: bytes
    request: EngineCoreRequest
    prompt_known: bool
    outputs: list[tuple[float, EngineCoreOutput]] = []
    tokens_known: bool = True
    aborted: bool = False

    @property
    def tokens(self) -> list[int]:
        """All tokens of the answer; zeros if they were not recorded."""
        return [token for _, output in self.outputs for token in output.new_token_ids]

    @property
    def finish(self) -> int | None:
        """Why it ended, if it did."""
        return next((o.finish_reason for _, o in self.outputs if o.finish_reason is not None), None)


class Called(msgspec.Struct):
    """A recorded call and its answer."""

    at: float
    peer: bytes
    call: UtilityRequest
    answer: tuple[float, UtilityOutput] | None = None
    answer_known: bool = True


class Saying(msgspec.Struct, frozen=True):
    """A message of a front-end, to be sent again. `asked` is the request that it makes, if it is an ADD."""

    at: float
    peer: bytes
    client: int
    frames: list[bytes]
    asked: Asked | None = None
    called: Called | None = None


class Engine(msgspec.Struct):
    """What an engine said of itself."""

    peer: bytes
    hello: bytes = b""
    ready: bytes = b""
    response: bytes = b""
    ready_at: float = 0.0
    stats: list[tuple[float, int, SchedulerStats]] = []
    died: bool = False


class Script(msgspec.Struct):
    """The whole of a recording."""

    engines: dict[bytes, Engine] = {}
    clients: int = 1
    parallel_config: dict[str, Any] = {}
    said: list[Saying] = []
    asked: list[Asked] = []
    called: list[Called] = []
    skipped: int = 0
    """Messages of the front-end that cannot be sent again, because too little of them was recorded."""

    @property
    def made_up(self) -> bool:
        """Whether prompts or answers were not recorded."""
        return any(not (asked.prompt_known and asked.tokens_known) for asked in self.asked)


class _Writer:
    """Makes a script of messages in their order."""

    def __init__(self) -> None:
        self.script = Script()
        self._requests: dict[tuple[bytes, str], Asked] = {}
        self._calls: dict[tuple[bytes, int], Called] = {}

    def take(self, message: Message) -> None:
        record = message.record
        if record.direction is Direction.EVENT:
            return
        engine = self.script.engines.setdefault(record.peer, Engine(record.peer))
        if record.role is Role.HANDSHAKE or (record.role is Role.INPUT and record.direction is Direction.TO_FRONTEND):
            self._join(engine, message)
        elif record.role is Role.INPUT:
            self._said(message)
        elif record.role is Role.OUTPUT:
            self._heard(engine, message)

    def _join(self, engine: Engine, message: Message) -> None:
        payload = (message.record.payloads or [b""])[0]
        match message.kind:
            case Kind.HELLO:
                engine.hello = engine.hello or payload
            case Kind.READY:
                engine.ready = engine.ready or payload
                engine.ready_at = engine.ready_at or message.record.at
            case Kind.RESPONSE:
                engine.response = engine.response or payload
            case Kind.INIT if isinstance(message.value, Init):
                self.script.clients = max(self.script.clients, len(message.value.addresses.inputs))
                self.script.parallel_config = message.value.parallel_config

    def _said(self, message: Message) -> None:
        record = message.record
        frames = record.payloads
        if frames is None or (message.fault and record.withheld):
            self.script.skipped += 1
            return
        asked = called = None
        if isinstance(message.value, EngineCoreRequest):
            asked = self._asked(record, message.value)
            frames = frames if asked.prompt_known else _with_prompt(frames, asked)
        elif isinstance(message.value, UtilityRequest):
            called = Called(record.at, record.peer, message.value)
            self.script.called.append(called)
            self._calls[record.peer, message.value.call_id] = called
            if "args" in record.withheld:
                self.script.skipped += 1
                return
        elif message.kind is Kind.ABORT:
            for request_id in message.ids:
                if (known := self._requests.get((record.peer, request_id))) is not None and known.finish is None:
                    known.aborted = True
        self.script.said.append(Saying(record.at, record.peer, record.client or 0, frames, asked, called))

    def _asked(self, record: Record, request: EngineCoreRequest) -> Asked:
        known = _PROMPT not in record.withheld
        asked = Asked(len(self.script.asked), record.at, record.peer, request, known)
        if not known and request.prompt_token_ids is not None:
            request.prompt_token_ids = made_up(asked.number, len(request.prompt_token_ids))
        self.script.asked.append(asked)
        self._requests[record.peer, request.request_id] = asked
        return asked

    def _heard(self, engine: Engine, message: Message) -> None:
        record = message.record
        if message.kind is Kind.DEAD:
            engine.died = True
        if not isinstance(message.value, EngineCoreOutputs):
            return
        if (answer := message.value.utility_output) is not None:
            if (called := self._calls.get((record.peer, answer.call_id))) is not None:
                called.answer, called.answer_known = (record.at, answer), "answer" not in record.withheld
            return
        for output in message.value.outputs:
            if (asked := self._requests.get((record.peer, output.request_id))) is not None:
                asked.outputs.append((record.at, output))
                asked.tokens_known = asked.tokens_known and _TOKENS not in record.withheld
        if message.value.scheduler_stats is not None:
            engine.stats.append((record.at, record.client or 0, message.value.scheduler_stats))


def script_of(messages: Iterable[Message]) -> Script:
    """What a recording says, ready to be played. Raises ConfigError if no engine has joined in it."""
    writer = _Writer()
    for message in messages:
        writer.take(message)
    script = writer.script
    script.engines = {peer: engine for peer, engine in script.engines.items() if engine.hello and engine.response}
    script.said = [saying for saying in script.said if saying.peer in script.engines]
    if not script.engines:
        raise ConfigError("no engine has joined its front-end in this recording, so there is nothing to be played")
    if wrong := [peer.hex() for peer in script.engines if len(peer) != 2]:
        raise ConfigError(
            f"an engine of the recording has the identity {wrong[0]}, which is no rank; it cannot be played"
        )
    for saying in script.said:
        if not 0 <= saying.client < script.clients:
            raise ConfigError(
                f"the recording has a message of front-end process {saying.client}, and its INIT names "
                f"{script.clients} of them; it cannot be played"
            )
    return script


def made_up(number: int, length: int) -> list[int]:
    """Token ids in place of those that were not recorded: the same ones for the same request of a recording."""
    return [(number * 31 + position) % MADE_UP_BELOW + 1 for position in range(length)]


def _with_prompt(frames: list[bytes], asked: Asked) -> list[bytes]:
    """The frames of an ADD with a made-up prompt."""
    values = msgspec.msgpack.decode(frames[1])
    values[1] = asked.request.prompt_token_ids
    return [RequestType.ADD, msgspec.msgpack.encode(values), *frames[2:]]
