"""One engine under examination: what its cases ask with, and how it is led through the handshake. Pure.

Everything waits with a limit: silence is a finding. Time is what the link says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from muro.probe.check.engine_rules import Course, Watch
from muro.probe.check.report import Broken, Case, Findings, Lost
from muro.wire.codec import RequestEncoder
from muro.wire.frames import Frame, RequestType
from muro.wire.handshake import Addresses, Init, encode_init
from muro.wire.output import UtilityOutput
from muro.wire.releases import Layout, layout_of_engine
from muro.wire.request import EngineCoreRequest, SamplingParams

HANDSHAKE = -1
"""Stands for the handshake socket where a client index is expected."""

ADD_LENGTHS = ((31, 22), (28, 21), (25, 20))
"""From which release on an ADD has how many elements."""

FENCE = "get_supported_tasks"
PROMPT = (9, 3, 7, 4, 8, 5, 10, 6)
"""Token ids that a model of any size knows."""

JOINING = [
    Case("hello", "The first message is a HELLO: a map with status, local, headless.", "It says who is there."),
    Case("identity", "The identity is the rank in two bytes, little endian.", "Front-ends address engines by it."),
    Case(
        "ready_response",
        "The first message on every input socket is the ready response, of one frame.",
        "Each front-end process waits for its own.",
    ),
    Case(
        "ready_keys",
        "The ready response has all keys up to its release, each of its type, and a known dtype.",
        "A front-end ends when one that it needs is missing; more never hurt.",
    ),
    Case("ready", "READY comes once, when the engine is loaded.", "Until then no front-end sends anything."),
]

_INT_KEYS = ("max_model_len", "num_gpu_blocks", "block_size", "world_size", "data_parallel_size")
_INT_KEYS_27 = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "data_parallel_rank",
    "max_num_seqs",
    "max_num_batched_tokens",
)
DTYPES = ("float16", "bfloat16", "float32")


class Heard(msgspec.Struct, frozen=True):
    """A message of the engine: on the output or input socket of a client, or on the handshake socket.

    `frames` are as a front-end's socket gives them: with the identity in front, except on output sockets.
    """

    client: int
    is_output: bool
    frames: list[Frame]


class EngineLink(Protocol):
    """The sockets of a front-end with several processes, and a clock in seconds."""

    @property
    def addresses(self) -> Addresses: ...

    def send(self, client: int, identity: bytes, frames: Sequence[Frame]) -> bool:
        """To an engine, on the input socket of a client or on the handshake socket; False if it is not there."""
        ...

    def hear(self, within: float) -> Heard | None:
        """The next message; None if there is none within so many seconds."""
        ...

    def now(self) -> float: ...

    def terminate(self) -> bool:
        """Ask the engine's process to stop; False if it is not known."""
        ...

    def ended(self, within: float) -> bool:
        """Whether the engine's process ends within so many seconds."""
        ...


class Patience(msgspec.Struct, frozen=True):
    """How long what may take, in seconds."""

    hello: float = 60.0
    loading: float = 600.0
    answer: float = 10.0


class Exam:
    """Asks an engine, and keeps what it says. `number` of clients are there."""

    def __init__(self, link: EngineLink, findings: Findings, patience: Patience, release: str | None = None) -> None:
        self.link = link
        self.findings = findings
        self.patience = patience
        self.identity = b""
        self.ready: dict[str, Any] = {}
        """The ready response as a map."""
        self.repeats: bool | None = None
        """Whether the engine repeats prompts instead of choosing tokens; None: not known yet."""
        self._release = release
        self.layout = layout_of_engine(release or "")
        self._responses: dict[int, list[Frame]] = {}
        self._early: list[Heard] = []
        self._ids = 0
        self._calls = 1 << 63  # as Python front-ends do: above what fits into a signed integer
        self._encoder = RequestEncoder()
        self.watch = Watch(findings, self.layout, 0)

    # The handshake.

    def join(self) -> None:
        """Lead the engine through the handshake. Raises Lost if it does not come to its end."""
        hello = self._handshake_word("hello", "HELLO", self.patience.hello)
        identity = bytes(hello[0])
        if len(identity) != 2:
            self.findings.fails("identity", f"{len(identity)} bytes: {identity[:16]!r}")
            raise Lost("an engine of this identity cannot be addressed")
        self.identity = identity
        rank = int.from_bytes(identity, "little")
        self.findings.holds("identity", f"rank {rank}")
        init = encode_init(Init(self.link.addresses))
        self.link.send(HANDSHAKE, identity, [init])
        self._handshake_word("ready", "READY", self.patience.loading)
        self._await_responses()
        self._start_watch(rank)
        self.findings.holds("ready", "after INIT")

    def _handshake_word(self, case: str, status: str, within: float) -> list[Frame]:
        end = self.link.now() + within
        while True:
            heard = self._hear_until(end)
            if heard is None:
                self.findings.fails(case, f"no {status} within {within:g} s")
                raise Lost(f"it did not say {status}")
            if heard.client != HANDSHAKE:
                self._keep(heard)
                continue
            fault = _word_fault(heard.frames, status)
            if fault:
                self.findings.fails(case, fault)
                raise Lost(f"it did not say {status} as it must")
            if case == "hello":
                self.findings.holds(case, "HELLO, well-formed")
            return heard.frames

    def _await_responses(self) -> None:
        wanted = len(self.link.addresses.inputs)
        end = self.link.now() + self.patience.answer
        while len(self._responses) < wanted and (heard := self._hear_until(end)) is not None:
            self._keep(heard)
        missing = [client for client in range(wanted) if client not in self._responses]
        if missing:
            self.findings.fails("ready_response", f"READY, but none on the input socket of client {missing[0]}")
            raise Lost("not every client got a ready response")
        self.findings.holds("ready_response", f"on all {wanted} input sockets")

    def _start_watch(self, rank: int) -> None:
        frames = self._responses[0]
        if len(frames) != 2 or bytes(frames[0]) != self.identity:
            self.findings.fails("ready_response", f"{len(frames)} frames from {bytes(frames[0])[:16]!r}")
            raise Lost("the ready response cannot be told")
        try:
            ready = msgspec.msgpack.decode(frames[1])
        except msgspec.DecodeError as error:
            self.findings.fails("ready_keys", f"it cannot be read: {error}")
            raise Lost("the ready response cannot be read") from error
        if not isinstance(ready, dict):
            self.findings.fails("ready_keys", f"a {type(ready).__name__}, not a map")
            raise Lost("the ready response cannot be read")
        self.ready = ready
        version = str(ready.get("vllm_version", ""))
        self.layout = layout_of_engine(self._release or version)
        faults = ready_faults(ready, self.layout)
        if faults:
            self.findings.fails("ready_keys", "; ".join(faults))
        self.findings.holds("ready_keys", f"{len(ready)} keys, of {version}")
        self.watch = Watch(self.findings, self.layout, rank)
        for heard in self._early:
            self._keep(heard)

    def _keep(self, heard: Heard) -> None:
        """Take note of a message that nobody is waiting for in particular."""
        if heard.client == HANDSHAKE:
            self.findings.fails("ready", "more was said on the handshake socket after READY")
        elif heard.is_output and self.ready:
            self.watch.take(heard.client, heard.frames)
        elif heard.is_output:
            self._early.append(heard)
        elif heard.client in self._responses:
            self.findings.fails("ready_response", f"more than one message on the input socket of client {heard.client}")
        else:
            self._responses[heard.client] = heard.frames

    # What cases ask with.

    @property
    def max_model_len(self) -> int | None:
        """As the ready response says it; None if it says no such number."""
        said = self.ready.get("max_model_len")
        return said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else None

    def send(self, *frames: Frame, client: int = 0) -> None:
        """Frames as they are, the type byte first. Raises Lost."""
        if not self.link.send(client, self.identity, frames):
            raise Lost("its connection has ended")

    def request(self, prompt: Sequence[int] | None = None, **sampling: Any) -> EngineCoreRequest:
        """A request with an id of its own; by default greedy, and not ended by the end-of-sequence token."""
        self._ids += 1
        params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 4, **sampling})
        tokens = list(prompt or PROMPT)
        return EngineCoreRequest(f"check-{self._ids}", tokens, sampling_params=params, arrival_time=1.0)

    def add(
        self, request: EngineCoreRequest, client: int = 0, changes: Callable[[list[Any]], Any] | None = None
    ) -> Course:
        """Send an ADD with as many elements as the examined release has; `changes` may spoil its array."""
        request.client_index = client
        _, payload, *_ = self._encoder.add(request)
        tree: list[Any] = msgspec.msgpack.decode(payload)
        tree += [None] * (next(n for minor, n in ADD_LENGTHS if self.layout.minor >= minor) - len(tree))
        if changes is not None:
            changes(tree)
        course = Course(len(request.prompt_token_ids or ()))
        self.watch.courses[client, request.request_id] = course
        self.send(RequestType.ADD, msgspec.msgpack.encode(tree), client=client)
        return course

    def run(self, request: EngineCoreRequest, client: int = 0) -> Course:
        """Send a request and wait for its end. Raises Broken."""
        course = self.add(request, client)
        self.finish(course)
        return course

    def finish(self, *courses: Course) -> None:
        """Wait for the ends of requests. Raises Broken."""
        self.until(lambda: all(course.finish is not None for course in courses), "no end of a request")

    def abort(self, *request_ids: str, client: int = 0) -> None:
        """Send an ABORT."""
        self.send(*self._encoder.abort(request_ids), client=client)

    def call(self, method: str, *args: Any, client: int = 0, call_id: int | None = None) -> UtilityOutput:
        """Call an operation and wait for the answer. Raises Broken."""
        asked = self.begin_call(method, *args, client=client, call_id=call_id)
        return self.answer(asked, method, client)

    def begin_call(self, method: str, *args: Any, client: int = 0, call_id: int | None = None) -> int:
        """Call an operation; gives the id of the call."""
        if call_id is None:
            self._calls += 1
            call_id = self._calls
        self.send(RequestType.UTILITY, msgspec.msgpack.encode([client, call_id, method, list(args)]), client=client)
        return call_id

    def answer(self, call_id: int, method: str, client: int = 0) -> UtilityOutput:
        """Wait for an answer. Raises Broken."""
        answers = self.watch.answers
        # Whether ids of 64 bits come back whole is the business of one case alone.
        keys = (client, call_id), (client, call_id & (2**63 - 1))
        self.until(lambda: any(key in answers for key in keys), f"no answer to {method}")
        return next(answers.pop(key) for key in keys if key in answers)

    def fence(self, client: int = 0) -> None:
        """See that the engine has read everything and still answers. Raises Lost."""
        try:
            self.call(FENCE, client=client)
        except Broken:
            raise Lost("it no longer answers") from None

    def settle(self, request_id: str, client: int = 0) -> None:
        """From now on nobody asks what comes of this request."""
        self.watch.courses[client, request_id].settled = True

    def until(self, condition: Callable[[], bool], silence: str, within: float | None = None) -> None:
        """Listen until something is true. Raises Broken after too long, and Lost if the engine says that it is dead."""
        within = self.patience.answer if within is None else within
        end = self.link.now() + within
        while not condition():
            if self.watch.dead:
                raise Lost("it sent the death notice")
            if (heard := self._hear_until(end)) is None:
                raise Broken(f"{silence} within {within:g} s")
            self._keep(heard)

    def listen(self, seconds: float) -> None:
        """Take what comes for a while."""
        end = self.link.now() + seconds
        while (heard := self._hear_until(end)) is not None:
            self._keep(heard)

    def _hear_until(self, end: float) -> Heard | None:
        left = end - self.link.now()
        return self.link.hear(left) if left > 0 else None


def _word_fault(frames: list[Frame], status: str) -> str:
    """What is wrong with HELLO or READY; empty if nothing."""
    if len(frames) != 2:
        return f"{len(frames)} frames, not identity and payload"
    try:
        word = msgspec.msgpack.decode(frames[1])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"it cannot be read: {error}"
    if not isinstance(word, dict):
        return f"a {type(word).__name__}, not a map"
    if word.get("status") != status:
        return f"status {word.get('status')!r:.40} instead of {status}"
    wrong = [key for key in ("local", "headless") if not isinstance(word.get(key), bool)]
    return f"{' and '.join(wrong)} missing, or no bool" if wrong else ""


def ready_faults(ready: dict[str, Any], layout: Layout) -> list[str]:
    """What is wrong with a ready response, for front-ends up to the release of `layout`."""
    ints = _INT_KEYS + (_INT_KEYS_27 if layout.minor >= 27 else ()) + (("max_loras",) if layout.minor >= 29 else ())
    texts = ("dtype", "vllm_version") + (("instance_id",) if layout.minor >= 27 else ())
    kinds: dict[str, type | tuple[type, ...]] = {
        **dict.fromkeys(ints, int),
        **dict.fromkeys(texts, str),
        "dp_stats_address": (str, type(None)),
        **({"supports_lora": bool} if layout.minor >= 29 else {}),
    }
    faults = [f"no {key}" for key in kinds if key not in ready]
    for key, kind in kinds.items():
        value = ready.get(key)
        if key in ready and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            faults.append(f"{key} is {value!r:.40}")
    dtype = ready.get("dtype")
    if isinstance(dtype, str) and dtype not in DTYPES:
        faults.append(f"dtype {dtype[:40]!r}; it is one of {', '.join(DTYPES)}")
    lora, loras = ready.get("supports_lora"), ready.get("max_loras")
    if isinstance(lora, bool) and isinstance(loras, int) and lora != (loras > 0):
        faults.append(f"supports_lora is {lora}, but max_loras is {loras}")
    return faults
