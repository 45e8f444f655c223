"""The smallest front-end that does all that the protocol demands, with a hook at each stage.

Pure: frames in, frames out. For one engine. Its tokenizer is UTF-8: a token is a byte. It writes requests of 22
elements and reads every layout. The hooks do nothing; `frontend_faults` has those that do something wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from muro.errors import RemoteProtocolError
from muro.wire.codec import DEAD, Marker, OutputDecoder
from muro.wire.frames import Frame, RequestType
from muro.wire.handshake import Addresses, Init, encode_init
from muro.wire.output import EngineCoreOutput, FinishReason

Map = dict[str, Any]
Tree = list[Any]
Messages = list[list[bytes]]
"""For the engine's input socket."""
ADD_FIELDS = 22
REQUEST_ID, SAMPLING, CLIENT = 0, 3, 11


class Gone(Exception):
    """The front-end has ended."""


class Asked(msgspec.Struct, frozen=True):
    """What a user wants."""

    prompt: str
    max_tokens: int = 16
    temperature: float = 1.0
    seed: int | None = None
    stop: list[str] = []


class Reader(Protocol):
    """Whoever waits for a completion."""

    def text(self, piece: str) -> None: ...

    def ended(self, reason: str) -> None: ...

    def failed(self, why: str) -> None: ...


def _same(value: Any) -> Any:
    return value


class FrontendHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to what passes a stage; None in place of a message means that it is not sent. May raise `Gone`."""

    init: Callable[[Map], Map | None] = _same
    ready_response: Callable[[Map], Messages] = lambda ready: []
    """Messages that follow the ready response, without waiting for READY."""
    joined: Callable[[], Messages] = list
    """Messages that follow READY and the ready response."""
    hello_again: Callable[[], None] = lambda: None
    add: Callable[[Tree], Tree] = _same
    abort: Callable[[str, str], list[str]] = lambda request_id, why: [request_id]
    """Ids to abort, of a request whose user has left ("left") or whose stop string has come ("stop")."""
    output: Callable[[EngineCoreOutput], EngineCoreOutput | None] = _same
    unknown: Callable[[str], None] = lambda request_id: None
    raw: Callable[[Tree], None] = lambda tree: None
    """Gets every message of the engine as msgpack has it."""
    unreadable: Callable[[], None] = lambda: None
    death: Callable[[], bool] = lambda: True
    """Whether a death notice is heeded."""


class _Live(msgspec.Struct):
    """A completion under way."""

    asked: Asked
    reader: Any
    said: bytes = b""


class MinimalFrontend:
    """One front-end process with one engine. `identity` is set once it has greeted."""

    def __init__(self, hooks: FrontendHooks, addresses: Addresses) -> None:
        self._hooks = hooks
        self._addresses = addresses
        self._decoder = OutputDecoder()
        self._live: dict[str, _Live] = {}
        self._count = 0
        self._said_ready = False
        self._responded = False
        self._dead = False
        self.identity = b""

    @property
    def serving(self) -> bool:
        """Whether the engine is there."""
        return self._said_ready and self._responded and not self._dead

    def greet(self, identity: bytes, payload: bytes) -> tuple[bytes | None, Messages]:
        """A word on the handshake socket: the INIT to answer with, and messages."""
        if msgspec.msgpack.decode(payload)["status"] == "READY":
            self._said_ready = True
            return None, self._if_joined()
        if self.identity:
            self._hooks.hello_again()
            return None, []
        self.identity = identity
        init = self._hooks.init(msgspec.msgpack.decode(encode_init(Init(self._addresses))))
        return None if init is None else msgspec.msgpack.encode(init), []

    def ready_response(self, payload: bytes) -> Messages:
        """The engine's first word on the input socket."""
        self._responded = True
        return [*self._hooks.ready_response(msgspec.msgpack.decode(payload)), *self._if_joined()]

    def ask(self, asked: Asked, reader: Reader) -> tuple[str, Messages]:
        """A user's request: its id, and messages for the engine. `reader.failed` is called if there is no engine."""
        if not self.serving:
            reader.failed("there is no engine")
            return "", []
        self._count += 1
        params: Map = {
            "temperature": asked.temperature,
            "max_tokens": asked.max_tokens,
            "seed": asked.seed,
            "_all_stop_token_ids": [],
        }
        tree: Tree = [None] * ADD_FIELDS
        tree[:6] = [f"cmpl-{self._count}", list(asked.prompt.encode()), None, params, None, time.time()]
        tree[11:14], tree[15], tree[19] = [0, 0, 0], False, False
        tree = self._hooks.add(tree)
        request_id: str = tree[REQUEST_ID]
        self._live[request_id] = _Live(asked, reader)
        return request_id, [[RequestType.ADD, msgspec.msgpack.encode(tree)]]

    def left(self, request_id: str) -> Messages:
        """The user of a request has gone."""
        return self._aborts(request_id, "left") if self._live.pop(request_id, None) else []

    def receive(self, frames: Sequence[Frame]) -> Messages:
        """A message of the engine; gives messages for it. Raises Gone."""
        try:
            message = self._decoder.decode(frames)
        except RemoteProtocolError:
            self._hooks.unreadable()
            return []
        if message is DEAD or isinstance(message, Marker):
            if self._hooks.death():
                self._die()
            return []
        self._hooks.raw(msgspec.msgpack.decode(frames[0], ext_hook=lambda code, data: data))
        return [m for output in message.outputs for m in self._take(output)]

    def _take(self, output: EngineCoreOutput) -> Messages:
        live = self._live.get(output.request_id)
        if live is None:
            self._hooks.unknown(output.request_id)
            return []
        heard = self._hooks.output(output)
        if heard is None:
            return []
        live.said += bytes(token for token in heard.new_token_ids if token < 256)
        said = live.said.decode(errors="replace")
        if stop := next((text for text in live.asked.stop if text in said), None):
            del self._live[output.request_id]
            live.reader.text(said.partition(stop)[0])
            live.reader.ended("stop")
            return self._aborts(output.request_id, "stop") if heard.finish_reason is None else []
        if heard.finish_reason is None:
            if not live.asked.stop:
                live.reader.text(said)
                live.said = b""
            return []
        del self._live[output.request_id]
        if heard.finish_reason == FinishReason.ERROR:
            live.reader.failed("the engine could not serve the request")
        else:
            live.reader.text(said)
            live.reader.ended(heard.finish_reason.name.lower())
        return []

    def _aborts(self, request_id: str, why: str) -> Messages:
        ids = self._hooks.abort(request_id, why)
        return [[RequestType.ABORT, msgspec.msgpack.encode(ids)]] if ids else []

    def _if_joined(self) -> Messages:
        return self._hooks.joined() if self._said_ready and self._responded else []

    def _die(self) -> None:
        self._dead = True
        live, self._live = self._live, {}
        for one in live.values():
            one.reader.failed("the engine has died")
