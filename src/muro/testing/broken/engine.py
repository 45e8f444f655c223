"""The smallest engine that does all that the protocol demands, with a hook at each stage. Pure: frames in, frames out.

Its tokens are numbers made from the tokens before them. It writes the layout of 0.33 and reads every release. The hooks
do nothing; `engine_faults` has those that do something wrong.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from muro.errors import RemoteProtocolError
from muro.wire.arrays import RAW_EXT
from muro.wire.codec import Request, RequestDecoder
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.frames import ENGINE_CORE_DEAD, Frame, identity_of
from muro.wire.handshake import ReadyResponse
from muro.wire.output import EngineCoreOutputs, FinishReason
from muro.wire.request import EngineCoreRequest

Tree = list[Any]
"""A message as msgpack has it; positions as in `wire.output`."""
Map = dict[str, Any]
Out = tuple[int, list[bytes]]
"""Client index and frames for its output socket."""

VOCABULARY = 1000
MAX_MODEL_LEN = 512
OUTPUTS, STATS, ANSWER, FINISHED = 1, 2, 4, 5
TOKENS, LOGPROBS, FINISH, REASON, EVENTS, PREFILL = 1, 2, 5, 6, 7, 11


class Died(Exception):
    """The engine has ended. `told`: the clients that get a death notice first."""

    def __init__(self, told: Sequence[int] = ()) -> None:
        super().__init__("the engine has ended")
        self.told = tuple(told)


def _same(value: Any) -> Any:
    return value


class EngineHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to what passes a stage; None in place of a message means that it is not sent. May raise `Died`."""

    identity: Callable[[bytes], bytes] = _same
    hello: Callable[[Map], Map | None] = _same
    ready_response: Callable[[int, Map], Map | None] = lambda client, ready: ready
    ready: Callable[[Map], Map | None] = _same
    readable: Callable[[Sequence[Frame]], bool] = lambda frames: True
    unreadable: Callable[[Sequence[Frame]], None] = lambda frames: None
    request: Callable[[EngineCoreRequest], EngineCoreRequest] = _same
    serving: Callable[[int], None] = lambda number: None
    """Told how many requests there are, when one more has come."""
    aborted: Callable[[list[str]], list[str]] = _same
    call: Callable[[UtilityRequest], UtilityRequest] = _same
    answer: Callable[[str, Tree], Tree] = lambda method, answer: answer
    wave: Callable[[StartDPWave], None] = lambda wave: None
    held: Callable[[bool], bool] = _same
    """Whether a request waits because of a pause."""
    message: Callable[[Tree], list[Tree]] = lambda message: [message]
    client: Callable[[int], int] = _same
    stopped: Callable[[], None] = lambda: None
    """The process was asked to stop."""


class _Live(msgspec.Struct):
    """A request that is served."""

    client: int
    request: EngineCoreRequest
    said: list[int] = []


class MinimalEngine:
    """One engine for `clients` front-end processes; `now` gives monotonic seconds."""

    def __init__(self, hooks: EngineHooks, now: Callable[[], float], *, rank: int = 0, clients: int = 1) -> None:
        self._hooks = hooks
        self._now = now
        self._rank = rank
        self._clients = clients
        self._decoder = RequestDecoder()
        self._live: dict[tuple[int, str], _Live] = {}
        self._paused = False
        self._asleep = False
        self._unseeded = 0
        self._operations: dict[str, Callable[[list[Any]], Any]] = {
            "get_supported_tasks": lambda args: ["generate"],
            "reset_mm_cache": lambda args: None,
            "reset_encoder_cache": lambda args: None,
            "reset_prefix_cache": lambda args: True,
            "is_sleeping": lambda args: self._asleep,
            "is_scheduler_paused": lambda args: self._paused,
            "sleep": self._sleep,
            "wake_up": self._wake_up,
            "pause_scheduler": self._pause,
            "resume_scheduler": self._resume,
        }
        self._last_words: list[Out] = []
        """Ends of requests that a call has brought about."""

    @property
    def identity(self) -> bytes:
        return self._hooks.identity(identity_of(self._rank))

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return any(not self._hooks.held(self._paused) for _ in self._live)

    def hello(self) -> bytes | None:
        return _packed(self._hooks.hello({"status": "HELLO", "local": False, "headless": True}))

    def ready_response(self, client: int) -> bytes | None:
        """The first message on the input socket of a client."""
        response = ReadyResponse(
            max_model_len=MAX_MODEL_LEN,
            num_gpu_blocks=0,
            block_size=16,
            dp_stats_address=None,
            dtype="float32",
            vllm_version="0.33.0",
            world_size=1,
            data_parallel_size=1,
            data_parallel_rank=self._rank,
        )
        return _packed(self._hooks.ready_response(client, msgspec.msgpack.decode(response.encode())))

    def ready(self) -> bytes | None:
        return _packed(self._hooks.ready({"status": "READY", "local": False, "headless": True}))

    def receive(self, client: int, frames: Sequence[Frame]) -> list[Out]:
        """A message from the input socket of a client. Raises Died."""
        try:
            if not self._hooks.readable(frames):
                raise RemoteProtocolError("refused")
            message = self._decoder.decode(frames)
        except RemoteProtocolError:
            self._hooks.unreadable(frames)
            known = self._decoder.salvage(frames)
            return [] if known is None else self._end(client, known[0], FinishReason.ERROR)
        return self._take(client, message)

    def step(self) -> list[Out]:
        """A token for each request."""
        out: list[Out] = []
        if self._hooks.held(self._paused):
            return out
        for (client, request_id), live in list(self._live.items()):
            row, ended = self._row(live)
            if ended:
                del self._live[client, request_id]
            out += self._send(client, [self._rank, [row], self._stats()])
        return out

    def stop(self) -> list[Out]:
        """End everything: the process was asked to stop. Raises Died."""
        self._hooks.stopped()
        return self._end_all()

    def _take(self, client: int, message: Request) -> list[Out]:
        if isinstance(message, AbortRequest):
            for request_id in self._hooks.aborted(message.request_ids):
                self._live.pop((client, request_id), None)
            return []
        if isinstance(message, UtilityRequest):
            return self._call(message)
        if isinstance(message, StartDPWave):
            self._hooks.wave(message)
            return []
        request = self._hooks.request(message)
        if request.sampling_params is None or len(request.prompt_token_ids or ()) > MAX_MODEL_LEN:
            return self._end(client, request.request_id, FinishReason.ERROR)
        self._live[request.client_index, request.request_id] = _Live(request.client_index, request)
        self._hooks.serving(len(self._live))
        return []

    def _call(self, call: UtilityRequest) -> list[Out]:
        call = self._hooks.call(call)
        self._last_words = []
        try:
            result = [None, self._operations[call.method](call.args)]
            answer: Tree = [call.call_id, None, result]
        except Exception as error:
            answer = [call.call_id, f"Call to {call.method} method failed: {error!r}", None]
        answer = self._hooks.answer(call.method, answer)
        return [*self._last_words, *self._send(call.client_index, [self._rank, [], None, 0.0, answer])]

    def _sleep(self, args: list[Any]) -> None:
        level, mode = args
        if level not in (0, 1, 2):
            raise ValueError(f"level {level!r}")
        self._pause([mode, True])
        self._asleep = True

    def _wake_up(self, args: list[Any]) -> bool:
        self._asleep = self._paused = False
        return True

    def _pause(self, args: list[Any]) -> None:
        self._paused = True
        if args[:1] == ["abort"]:
            self._last_words = self._end_all()

    def _resume(self, args: list[Any]) -> None:
        self._paused = False

    def _row(self, live: _Live) -> tuple[Tree, bool]:
        """The next output of a request, and whether it is the last one."""
        params = live.request.sampling_params
        assert params is not None  # noqa: S101 - checked when it came
        prompt = live.request.prompt_token_ids or []
        token = self._token(live, [*prompt, *live.said])
        live.said.append(token)
        row: Tree = [live.request.request_id, [token], *[None] * 17]
        row[13] = 0
        if len(live.said) == 1:
            row[EVENTS] = [{"type": kind, "timestamp": self._now()} for kind in (1, 2)]
            row[PREFILL] = {"num_prompt_tokens": len(prompt), "num_computed_tokens": len(prompt)}
        if params.logprobs is not None:
            row[LOGPROBS] = _logprobs(token, params.logprobs)
        if len(live.said) >= params.min_tokens:
            if token == params.eos_token_id:
                row[FINISH] = FinishReason.STOP.value
            elif token in (params.stop_token_ids or ()):
                row[FINISH], row[REASON] = FinishReason.STOP.value, token
        full = len(prompt) + len(live.said) >= MAX_MODEL_LEN
        if row[FINISH] is None and (full or len(live.said) == params.max_tokens):
            row[FINISH] = FinishReason.LENGTH.value
        return row, row[FINISH] is not None

    def _token(self, live: _Live, before: list[int]) -> int:
        params = live.request.sampling_params
        assert params is not None  # noqa: S101
        key = list(before[-8:])
        if params.temperature >= 1e-5:
            if params.seed is None:
                self._unseeded += 1
            key += [self._unseeded if params.seed is None else params.seed]
        return zlib.crc32(msgspec.msgpack.encode(key)) % VOCABULARY

    def _stats(self) -> Map:
        prefix = dict.fromkeys(
            ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"), 0
        )
        return {
            "num_running_reqs": len(self._live),
            "num_waiting_reqs": 0,
            "step_counter": 0,
            "current_wave": 0,
            "kv_cache_usage": 0.0,
            "prefix_cache_stats": {"reset": False, **prefix},
            "kv_cache_eviction_events": [],
        }

    def _end_all(self) -> list[Out]:
        return [out for client, name in list(self._live) for out in self._end(client, name, FinishReason.ABORT)]

    def _end(self, client: int, request_id: str, reason: FinishReason) -> list[Out]:
        self._live.pop((client, request_id), None)
        row: Tree = [request_id, [], None, None, None, reason.value]
        return self._send(client, [self._rank, [row], None, 0.0, None, [request_id]])

    def _send(self, client: int, parts: Tree) -> list[Out]:
        """A message in full length, after its hooks."""
        whole = [*parts, *[None] * (len(EngineCoreOutputs.__struct_fields__) - len(parts))]
        whole[3] = self._now()
        messages = self._hooks.message(whole)
        return [(self._hooks.client(client), [msgspec.msgpack.encode(message)]) for message in messages]


def death_notices(clients: Sequence[int]) -> list[Out]:
    """What an engine says that has failed."""
    return [(client, [ENGINE_CORE_DEAD]) for client in clients]


def _logprobs(token: int, number: int) -> Tree:
    """Of one position: the token, which is the most likely one, and as many others."""
    width = number + 1
    ids = [token, *[token, *(other for other in range(width) if other != token)][:number]]
    values = [-1.0, *[-1.0 - n for n in range(number)]]
    return [
        ["<i4", [1, width], msgspec.msgpack.Ext(RAW_EXT, struct.pack(f"<{width}i", *ids))],
        ["<f4", [1, width], msgspec.msgpack.Ext(RAW_EXT, struct.pack(f"<{width}f", *values))],
        ["<i8", [1], msgspec.msgpack.Ext(RAW_EXT, struct.pack("<q", 1))],
        None,
    ]


def _packed(message: Map | None) -> bytes | None:
    return None if message is None else msgspec.msgpack.encode(message)
