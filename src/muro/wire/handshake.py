"""How an engine joins a front-end: HELLO, INIT, READY and the ready response (protocol sections 3 and 4).

One table says what may follow what; it does not know whose side it is on, so neither side can cheat. Around it
stand the two roles, pure: bytes in, bytes out. Sockets, time limits and patience are their owners'.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.ids import EngineRank
from muro.wire.frames import Frame, rank_of

MAX_HANDSHAKE_BYTES: Final = 1 << 20
"""No honest handshake message comes near."""

HEARTBEAT: Final = "heartbeat"
"""Feature of a front-end: it understands heartbeats of ZMTP 3.1, so that both sides notice a silent loss."""


class Stage(enum.Enum):
    """Where an engine is in its joining, seen from either side."""

    EXPECTED = "no HELLO yet"
    GREETED = "HELLO came, INIT is due"
    LOADING = "INIT was sent; loading, no READY yet"
    READY = "READY"


class Step(enum.Enum):
    """What passes over the handshake socket."""

    HELLO = "HELLO"
    INIT = "INIT"
    READY = "READY"


TRANSITIONS: Final[Mapping[tuple[Stage, Step], Stage]] = {
    (Stage.EXPECTED, Step.HELLO): Stage.GREETED,
    (Stage.GREETED, Step.INIT): Stage.LOADING,
    (Stage.LOADING, Step.READY): Stage.READY,
}


class Features(msgspec.Struct):
    """What a muro peer offers beyond the common protocol; used only if both sides said so."""

    version: str
    features: list[str] = []


class Addresses(msgspec.Struct):
    """What an engine connects to: one input and one output per front-end process, by client index."""

    inputs: list[str]
    outputs: list[str]
    coordinator_input: str | None = None
    coordinator_output: str | None = None
    frontend_stats_publish_address: str | None = None


class Init(msgspec.Struct):
    """Front-end -> engine: where to connect. `parallel_config` is empty except for mixture-of-experts ranks."""

    addresses: Addresses
    parallel_config: dict[str, Any] = {}
    muro: Features | None = None


class Hello(msgspec.Struct):
    """Engine -> front-end: the first word."""

    status: str
    local: bool
    headless: bool


class Ready(msgspec.Struct):
    """Engine -> front-end: loaded and connected. The hash comes from ranks of a mixture-of-experts group only."""

    status: str
    local: bool
    headless: bool
    parallel_config_hash: str | None = None


class KVEventsConfig(msgspec.Struct):
    """Where an engine publishes its KV cache events."""

    enable_kv_cache_events: bool = False
    publisher: str = "null"
    endpoint: str = ""
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


class ReadyResponse(msgspec.Struct, kw_only=True):
    """Engine -> every front-end: first message on each input socket, what the engine is.

    All keys of 0.33 are written, which every release accepts; the first eight are what 0.25.1 demands.
    `dtype` must be "float16", "bfloat16" or "float32".
    """

    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    dp_stats_address: str | None
    dtype: str
    vllm_version: str
    world_size: int
    data_parallel_size: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    data_parallel_rank: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    instance_id: str = ""
    supports_lora: bool = False
    max_loras: int = 0
    mamba_block_size: int | None = None
    kv_cache_size_tokens: int | None = None
    kv_cache_max_concurrency: float | None = None
    kv_events_config: KVEventsConfig | None = None
    weight_transfer_backend: str | None = None
    enable_sleep_mode: bool = False
    supports_draft_weight_updates: bool = False
    effective_attention_block_size: int | None = None
    coord_store_port: int = 0
    coordinator_input_address: str | None = None
    coordinator_output_address: str | None = None
    muro: Features | None = None

    def encode(self) -> bytes:
        """The payload. Raises LocalProtocolError for a dtype that front-ends refuse."""
        if self.dtype not in ("float16", "bfloat16", "float32"):
            raise LocalProtocolError(f"dtype {self.dtype!r} in the ready response; front-ends know no such word")
        return _encode(self)


class Expected(msgspec.Struct, frozen=True):
    """What an engine must say of itself; None accepts either."""

    local: bool | None = None
    headless: bool | None = None


class FrontendHandshake:
    """The front-end's part, for all its engines. A refused message changes nothing.

    `expected` names the ranks and what each must say; `init` is the answer to every HELLO.
    """

    def __init__(self, expected: Mapping[EngineRank, Expected], init: Init) -> None:
        self._expected = dict(expected)
        self._init = encode_init(init)
        self._stages = dict.fromkeys(self._expected, Stage.EXPECTED)
        self._hash: str | None = None
        self._silent: set[EngineRank] = set()
        """Those that have closed their connection after READY, and whose ready response has not come."""
        self.responses: dict[EngineRank, ReadyResponse] = {}

    def receive(self, frames: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Take a message of the handshake socket; gives the replies as (identity, payload).

        Raises RemoteProtocolError for anything that is not the next word of an expected engine.
        """
        if len(frames) != 2:
            raise RemoteProtocolError(f"handshake message of {len(frames)} frames, not identity and payload")
        identity, payload = frames
        rank = self._rank(identity)
        word = _decode(_hello, payload, f"handshake message of engine {rank}")
        if word.status not in (Step.HELLO.value, Step.READY.value):
            raise RemoteProtocolError(f"engine {rank} said {word.status[:40]!r}, neither HELLO nor READY")
        step = Step(word.status)
        anew = step is Step.HELLO and rank in self._silent
        stage = _next(Stage.EXPECTED if anew else self._stages[rank], step, f"engine {rank}")
        self._check(rank, word)
        if anew:
            self.forget(rank)
        if stage is Stage.READY:
            self._check_hash(rank, payload)
            self._stages[rank] = stage
            return []
        self._stages[rank] = _next(stage, Step.INIT, f"engine {rank}")
        return [(bytes(identity), self._init)]

    def ready_response(self, frames: list[bytes]) -> EngineRank:
        """Take the first message of an engine on the input socket: [identity, payload].

        Raises RemoteProtocolError for a wrong identity, for a second response, for one that comes before INIT
        was sent, and for one that cannot be read.
        """
        if len(frames) != 2:
            raise RemoteProtocolError(f"ready response of {len(frames)} frames, not identity and payload")
        rank = self._rank(frames[0])
        if rank in self.responses:
            raise RemoteProtocolError(f"engine {rank} sent a second ready response")
        if self._stages[rank] in (Stage.EXPECTED, Stage.GREETED):
            raise RemoteProtocolError(f"engine {rank} sent its ready response before it was given INIT")
        self.responses[rank] = decode_ready_response(frames[1], f"engine {rank}")
        self._silent.discard(rank)
        return rank

    def forget(self, rank: EngineRank) -> None:
        """This engine has gone; another one may greet in its place."""
        self._stages[rank] = Stage.EXPECTED
        self._silent.discard(rank)
        self.responses.pop(rank, None)

    def hung_up(self, rank: EngineRank) -> bool:
        """The connection on which this engine has greeted has ended. Whether the engine has gone: then it is forgotten.

        After READY nothing more is said there, and vLLM's engines close it, maybe before their ready response comes.
        """
        stage = self._stages[rank]
        if stage is Stage.READY and rank not in self.responses:
            self._silent.add(rank)
        if stage in (Stage.READY, Stage.EXPECTED):
            return False
        self.forget(rank)
        return True

    @property
    def done(self) -> bool:
        """Whether every engine said READY and sent its ready response."""
        return not self.missing()

    def stage(self, rank: EngineRank) -> Stage:
        """Where an engine is."""
        return self._stages[rank]

    def missing(self) -> dict[EngineRank, str]:
        """The engines that are not there yet, and what each is waited for, in people's words."""
        waited = {rank: stage.value for rank, stage in self._stages.items() if stage is not Stage.READY}
        for rank in self._stages:
            if rank not in waited and rank not in self.responses:
                waited[rank] = "READY, but its ready response has not come"
        return waited

    def _rank(self, identity: Frame) -> EngineRank:
        rank = rank_of(identity)
        if rank not in self._expected:
            raise RemoteProtocolError(f"engine {rank} is not expected here; expected: {_ranks(self._expected)}")
        return rank

    def _check(self, rank: EngineRank, word: Hello) -> None:
        wanted = self._expected[rank]
        for name, want, got in (
            ("local", wanted.local, word.local),
            ("headless", wanted.headless, word.headless),
        ):
            if want is not None and want != got:
                raise RemoteProtocolError(f"engine {rank} says {name}={got}, but {name}={want} is expected of it")

    def _check_hash(self, rank: EngineRank, payload: bytes) -> None:
        given = _decode(_ready, payload, f"READY of engine {rank}").parallel_config_hash
        if given is None:
            return
        if self._hash is not None and given != self._hash:
            raise RemoteProtocolError(
                f"engine {rank} runs with another parallel configuration than the engines before it; "
                "start all ranks with the same settings"
            )
        self._hash = given


class EngineHandshake:
    """The engine's part. `local`: started on this node by the front-end; `headless`: started with `--headless`."""

    def __init__(self, local: bool, headless: bool) -> None:
        self._local = local
        self._headless = headless
        self.state = Stage.EXPECTED

    def hello(self) -> bytes:
        """The first word; to be sent once."""
        self._say(Step.HELLO)
        return _encoder.encode(Hello(Step.HELLO.value, self._local, self._headless))

    def receive(self, payload: bytes) -> Init:
        """Take the front-end's answer. Raises RemoteProtocolError if it is not INIT, or comes twice."""
        stage = _next(self.state, Step.INIT, "the front-end")
        init = decode_init(payload)
        self.state = stage
        return init

    def ready(self, config_hash: str | None = None) -> bytes:
        """The last word, after the ready response went out on every input socket."""
        self._say(Step.READY)
        word = Ready(Step.READY.value, self._local, self._headless, config_hash)
        return _encoder.encode({k: v for k, v in msgspec.structs.asdict(word).items() if v is not None})

    def _say(self, step: Step) -> None:
        try:
            self.state = TRANSITIONS[self.state, step]
        except KeyError:
            raise LocalProtocolError(
                f"{step.value} is out of turn; the handshake stands at {self.state.name}"
            ) from None


def encode_init(init: Init) -> bytes:
    """The payload of INIT. Raises LocalProtocolError if the addresses do not pair up."""
    _check_addresses(init.addresses, LocalProtocolError)
    return _encode(init)


def decode_init(payload: Frame) -> Init:
    """INIT from its payload. Raises RemoteProtocolError."""
    init = _decode(_init, payload, "INIT")
    _check_addresses(init.addresses, RemoteProtocolError)
    return init


def decode_ready_response(payload: Frame, who: str = "an engine") -> ReadyResponse:
    """A ready response from its payload. Raises RemoteProtocolError."""
    if not len(payload):
        raise RemoteProtocolError(f"the ready response of {who} is empty")
    return _decode(_ready_response, payload, f"ready response of {who}")


def _next(stage: Stage, step: Step, who: str) -> Stage:
    """The stage after a step of a peer."""
    try:
        return TRANSITIONS[stage, step]
    except KeyError:
        raise RemoteProtocolError(f"{who} said {step.value} out of turn: {stage.value}") from None


def _check_addresses(addresses: Addresses, error: type[LocalProtocolError] | type[RemoteProtocolError]) -> None:
    inputs, outputs = len(addresses.inputs), len(addresses.outputs)
    if inputs != outputs or not inputs:
        raise error(f"INIT lists {inputs} input and {outputs} output addresses; it must be as many, at least one")


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, ... ({len(numbers)} in all)"


T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
_ready = msgspec.msgpack.Decoder(Ready)
_init = msgspec.msgpack.Decoder(Init)
_ready_response = msgspec.msgpack.Decoder(ReadyResponse)


def _encode(message: Init | ReadyResponse) -> bytes:
    """All keys, nil or not, save our own: a foreign peer never sees it empty."""
    keys = msgspec.structs.asdict(message)
    if message.muro is None:
        del keys["muro"]
    return _encoder.encode(keys)


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: Frame, what: str) -> T:
    if len(payload) > MAX_HANDSHAKE_BYTES:
        raise RemoteProtocolError(f"{what}: {len(payload)} bytes; the limit is {MAX_HANDSHAKE_BYTES}")
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{what} cannot be read: {error}") from error
