"""One front-end under examination: an engine that joins it, repeats prompts to it, and misbehaves when a case says so.

Pure: sockets and users are behind the link, and time is what that says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from muro.errors import RemoteProtocolError
from muro.probe.check.engine_exam import Patience
from muro.probe.check.frontend_rules import FrontendWatch
from muro.probe.check.report import Broken, Case, Findings, Lost, NotAsked
from muro.wire.control import UtilityRequest
from muro.wire.frames import Frame
from muro.wire.handshake import Addresses, Init, ReadyResponse, decode_init
from muro.wire.output import FinishReason
from muro.wire.request import EngineCoreRequest

Tree = list[Any]

JOINING = [
    Case("init", "HELLO is answered with INIT, once.", "It tells the engine where to go."),
    Case(
        "init_keys",
        "INIT has all five address keys, nil or not, as many inputs as outputs, and parallel_config.",
        "An engine connects to each; what is missing may end it.",
    ),
    Case("addresses", "The sockets that INIT names are there.", "They are bound before the engine is told of them."),
    Case(
        "waits",
        "Nothing is sent before the ready response and READY, however late they are.",
        "A model may load for minutes.",
    ),
    Case(
        "ready_keys",
        "A ready response with all keys of 0.33, and one more, is accepted.",
        "Unknown keys are how the protocol grows.",
    ),
]

ADDRESS_KEYS = ("inputs", "outputs", "coordinator_input", "coordinator_output", "frontend_stats_publish_address")
STEP_S = 0.005
QUIET_S = 0.5
MAX_MODEL_LEN = 4096
ANSWERS: dict[str, Any] = {
    "get_supported_tasks": ["generate"],
    "reset_mm_cache": None,
    "reset_prefix_cache": True,
    "reset_encoder_cache": None,
    "is_sleeping": False,
    "is_scheduler_paused": False,
    "wake_up": True,
    "sleep": None,
    "pause_scheduler": None,
    "pause_generation": None,
    "resume_scheduler": None,
    "list_loras": [],
    "get_weight_version": "default",
}


class FromFrontend(msgspec.Struct, frozen=True):
    """A message of the front-end; `client` is the number of the input socket, None for the handshake socket."""

    client: int | None
    frames: list[Frame]


class Ask(Protocol):
    """A user's request over HTTP."""

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        ...

    @property
    def status(self) -> int:
        """Of the answer; 0 if there is none (yet)."""
        ...

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def failed(self) -> bool:
        """Whether it ended with an error, or without an end."""
        ...

    @property
    def tokens(self) -> int | None:
        """How many the usage says that the answer has."""
        ...

    @property
    def begun(self) -> bool:
        """Whether a piece of a streamed answer has come."""
        ...

    def leave(self) -> None:
        """Hang up."""
        ...


class FrontendLink(Protocol):
    """The sockets of an engine, the users of a front-end, and a clock in seconds."""

    @property
    def has_users(self) -> bool:
        """Whether its HTTP API is known."""
        ...

    def say(self, payload: bytes) -> None:
        """On the handshake socket."""
        ...

    def connect(self, addresses: Addresses, within: float) -> str:
        """Connect to every input and output socket; what could not be reached in time, or nothing."""
        ...

    def answer(self, client: int, payload: bytes) -> None:
        """On the input socket of a client, which is for the ready response alone."""
        ...

    def send(self, client: int, frames: Sequence[Frame]) -> None:
        """On the output socket of a client."""
        ...

    def hear(self, within: float) -> FromFrontend | None: ...

    def is_lost(self) -> bool:
        """Whether the front-end's sockets have gone."""
        ...

    def leave(self) -> None:
        """Close all sockets, as a process does that ends."""
        ...

    def greet_again(self, hello: bytes) -> None:
        """Say HELLO once more: over the connection, and over another one with the same identity."""
        ...

    def ask(self, body: dict[str, Any]) -> Ask:
        """Let a user ask for a completion."""
        ...

    def send_away(self) -> None:
        """Let all users hang up who still wait."""
        ...

    def healthy(self, within: float) -> bool:
        """Whether the HTTP API says that it serves, within so many seconds."""
        ...

    def now(self) -> float: ...


class FrontendExam:
    """Plays the engine. `rank` is the identity with which the link dials."""

    def __init__(self, link: FrontendLink, findings: Findings, patience: Patience, rank: int = 0) -> None:
        self.link = link
        self.findings = findings
        self.patience = patience
        self.rank = rank
        self.watch = FrontendWatch(findings)
        self.init: dict[str, Any] = {}
        self.failing = False
        """Whether new requests end with ERROR."""
        self._said: dict[str, int] = {}
        self._joined = False
        self._stepped = 0.0

    # The handshake.

    def join(self) -> None:
        """Go through the handshake. Raises Lost if it does not come to its end."""
        self.link.say(self.hello())
        heard = self.link.hear(self.patience.hello)
        if heard is None:
            self.findings.fails("init", f"no answer to HELLO within {self.patience.hello:g} s")
            raise Lost("it did not answer HELLO")
        init = self._read_init(heard.frames)
        fault = _address_fault([*init.addresses.inputs, *init.addresses.outputs])
        if fault := fault or self.link.connect(init.addresses, self.patience.answer):
            self.findings.fails("addresses", fault)
            raise Lost("not all of its sockets are there")
        self.findings.holds("addresses", f"{2 * len(init.addresses.inputs)} sockets")
        self._wait_in_silence("before the ready response")
        ready = msgspec.msgpack.encode(self._ready_response(init))
        for client in range(len(init.addresses.inputs)):
            self.link.answer(client, ready)
        self._wait_in_silence("between the ready response and READY")
        self.link.say(msgspec.msgpack.encode({"status": "READY", "local": False, "headless": True}))
        self.findings.holds("waits", f"{2 * QUIET_S:g} s of silence")
        self._joined = True
        self._see_accepted(len(ready))

    def hello(self) -> bytes:
        """The first word."""
        return msgspec.msgpack.encode({"status": "HELLO", "local": False, "headless": True})

    def _read_init(self, frames: list[Frame]) -> Init:
        if len(frames) != 1:
            self.findings.fails("init", f"{len(frames)} frames instead of one")
            raise Lost("its answer to HELLO cannot be read")
        self.findings.holds("init", "one frame")
        try:
            init = decode_init(frames[0])
            self.init = msgspec.msgpack.decode(frames[0])
        except (RemoteProtocolError, msgspec.DecodeError) as error:
            self.findings.fails("init_keys", str(error))
            raise Lost("INIT cannot be read") from error
        missing = [key for key in ADDRESS_KEYS if key not in self.init["addresses"]]
        missing += [key for key in ("parallel_config",) if key not in self.init]
        if missing:
            self.findings.fails("init_keys", f"no {', '.join(missing)}")
        self.findings.holds("init_keys", f"all, for {len(init.addresses.inputs)} front-end processes")
        return init

    def _ready_response(self, init: Init) -> dict[str, Any]:
        response = ReadyResponse(
            max_model_len=MAX_MODEL_LEN,
            num_gpu_blocks=256,
            block_size=16,
            dp_stats_address=init.addresses.frontend_stats_publish_address,
            dtype="float32",
            vllm_version="0.33.0",
            world_size=1,
            data_parallel_size=1,
            data_parallel_rank=self.rank,
            kv_cache_size_tokens=MAX_MODEL_LEN,
            instance_id="wire-check",
        )
        keys: dict[str, Any] = msgspec.msgpack.decode(response.encode())
        return keys | {"a_key_of_the_future": {"x": 1}}

    def _wait_in_silence(self, when: str) -> None:
        if (heard := self.link.hear(QUIET_S)) is not None:
            where = "handshake" if heard.client is None else f"input socket {heard.client}"
            self.findings.fails("waits", f"a message on the {where} {when}")
            if heard.client is not None:
                self.take(heard)

    def _see_accepted(self, size: int) -> None:
        self.listen(QUIET_S)
        if self.link.is_lost():
            self.findings.fails("ready_keys", "it hung up")
            raise Lost("it did not accept the ready response")
        if self.link.has_users:
            end = self.link.now() + self.patience.answer
            while not self.link.healthy(QUIET_S):
                self.listen(STEP_S)
                if self.link.is_lost() or self.link.now() > end:
                    self.findings.fails("ready_keys", "it hung up" if self.link.is_lost() else "it does not serve")
                    raise Lost("it does not serve")
        self.findings.holds("ready_keys", f"{size} bytes, accepted")

    # What cases do.

    def ask(self, **body: Any) -> Ask:
        """Let a user ask for a completion. Raises NotAsked if there are no users."""
        if not self.link.has_users:
            raise NotAsked("its HTTP API is not known (--http)")
        return self.link.ask({"prompt": "alpha beta gamma delta", "max_tokens": 8, "temperature": 0, **body})

    def ask_whole(self, **body: Any) -> Ask:
        """Let a user ask, and wait for the answer. Raises Broken."""
        asked = self.ask(**body)
        self.until(lambda: asked.done, "no answer to a user")
        return asked

    def fence(self) -> None:
        """See that the front-end still serves. Raises Lost."""
        if not self.link.has_users:
            if self.link.is_lost():
                raise Lost("it hung up")
            return
        try:
            asked = self.ask_whole(max_tokens=2)
        except Broken:
            raise Lost("it no longer answers its users") from None
        if asked.failed:
            raise Lost(f"it no longer serves its users (status {asked.status})")

    def send(self, tree: Tree, client: int = 0) -> None:
        """A message to a front-end process."""
        self.link.send(client, [msgspec.msgpack.encode(tree)])

    def batch(self, *rows: Tree, stats: dict[str, Any] | None = None) -> Tree:
        """A message with outputs, or statistics."""
        return [self.rank, list(rows), stats, self.link.now(), None, None, None, None]

    def until(self, condition: Callable[[], bool], silence: str) -> None:
        """Serve until something is true. Raises Broken after too long."""
        within = self.patience.answer
        end = self.link.now() + within
        while not condition():
            if self.link.now() > end:
                raise Broken(f"{silence} within {within:g} s")
            self.listen(STEP_S)

    def listen(self, seconds: float) -> None:
        """Serve for a while: take what comes, and give each request a token now and then."""
        end = self.link.now() + seconds
        while (left := end - self.link.now()) > 0:
            if (heard := self.link.hear(min(STEP_S, left))) is not None:
                self.take(heard)
            if self.link.now() - self._stepped >= STEP_S:
                self._stepped = self.link.now()
                self._step()

    def take(self, heard: FromFrontend) -> None:
        """A message of the front-end."""
        if heard.client is None:
            self.findings.fails("init", "it came twice")
            return
        message = self.watch.take(heard.client, heard.frames)
        if isinstance(message, UtilityRequest):
            self._answer(heard.client, message)
        elif isinstance(message, EngineCoreRequest) and self.failing:
            self.watch.live.pop(message.request_id, None)
            self.send(self.batch([message.request_id, [], None, None, None, FinishReason.ERROR.value]), heard.client)
        elif isinstance(message, EngineCoreRequest):
            self._said[message.request_id] = 0
            message.client_index = heard.client

    def _answer(self, client: int, call: UtilityRequest) -> None:
        known = call.method in ANSWERS
        failure = None if known else f"Call to {call.method} method failed: there is no such method"
        answer = [call.call_id, failure, [None, ANSWERS[call.method]] if known else None]
        self.send([self.rank, [], None, self.link.now(), answer, None, None, None], client)

    def _step(self) -> None:
        """The next token of each prompt, again from its beginning after its end."""
        for request_id, request in list(self.watch.live.items()):
            said, prompt = self._said.get(request_id, 0), request.prompt_token_ids or [0]
            limit = request.sampling_params.max_tokens if request.sampling_params else 1
            row: Tree = [request_id, [prompt[said % len(prompt)]], None, None, None, None]
            self._said[request_id] = said + 1
            if said + 1 >= (limit or MAX_MODEL_LEN):
                row[5] = FinishReason.LENGTH.value
                del self.watch.live[request_id]
            self.send(self.batch(row), request.client_index)


def _address_fault(addresses: list[str]) -> str:
    """Which of them nobody can dial, for what it says; empty if none."""
    for address in addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if address.startswith("tcp://") and (port in ("0", "*", "") or host in ("*", "0.0.0.0", "[::]")):  # noqa: S104
            return f"{address} is no address to dial"
    return ""
