"""The contract between muro and an inference engine.

An engine knows nothing of clients, sockets, waves, queues or ranks. All methods but `preprocess` are called
from one thread, the loop thread; `preprocess` is called from the receiver thread and must not touch the
scheduler's state. The smallest engine is a subclass of `Engine` with `add_request`, `step`, `has_work` and
`abort_requests`; see `engines/echo.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

TakeAborts = Callable[[], Collection[str]]
"""Ids to abort that arrived during the forward pass; call it between forward and bookkeeping."""

Report = Callable[[str, float], None]
"""Progress of loading: `report(phase, percent)`, percent 0 ... 100."""

FailureCallback = Callable[[BaseException], None]

Memory = Literal["kv_cache", "weights"]
"""What an engine may give back while it sleeps: what was computed, and the model itself."""

F = TypeVar("F", bound=Callable[..., Any])


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do; known once it has loaded.

    `kv_cache_size_tokens` and `num_gpu_blocks` describe the KV cache (0 blocks: none). `dtype` is
    "float16", "bfloat16" or "float32": some front-ends refuse any other word.
    """

    max_model_len: int = 2**20
    num_gpu_blocks: int = 0
    block_size: int = 16
    kv_cache_size_tokens: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    dtype: str = "float32"
    supported_tasks: tuple[str, ...] = ("generate",)
    lockstep: bool = False
    understands_resumed_tokens: bool = False
    """Whether everything that looks at the output so far honours `extra_args["muro_resumed_tokens"]`, so that a reader
    cannot tell where a request was continued (see `wire.request.RESUMED_TOKENS`)."""
    honours_sampling_options: bool = False
    """Whether each sampling option is honoured or refused by name (see `wire.request.SAMPLING_OPTIONS`); of an engine
    that does not promise it the HTTP server asks no penalties, biases, log-probabilities or priorities."""
    releasable: tuple[Memory, ...] = ()
    """What `release_memory` gives back."""


class StepResult(msgspec.Struct):
    """News of one step: at most one output per request. `executed` is false if no forward ran.

    `prompt_tokens` were computed, for requests without an output yet. A step that has neither outputs nor these is no
    progress for those who watch whether the engine is stuck, unless `EngineCore.phase` says why.
    """

    outputs: list[EngineCoreOutput]
    executed: bool = True
    prompt_tokens: int = 0


@runtime_checkable
class Collective(Protocol):
    """Agreement among lockstep ranks."""

    def any_rank(self, mine: bool, timeout: float) -> bool:
        """Whether it is true on any rank. Raises an error that names the missing rank after `timeout` s."""
        ...


class EngineCore(Protocol):
    """What the host drives. Ids are internal and unique: the host maps them to clients and wire ids."""

    def info(self) -> EngineInfo: ...

    def preprocess(self, request: EngineCoreRequest) -> Any:
        """Check and prepare a request (receiver thread). What it raises ends this request only."""
        ...

    def add_request(self, request_id: str, prepared: Any) -> None:
        """Take a request over. What it raises ends this request only."""
        ...

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown and finished ids are ignored. No output follows for them."""
        ...

    def step(self, take_aborts: TakeAborts) -> StepResult:
        """Do one step of work.

        A `RequestError` that carries a `request_id` ends that request; any other error ends the engine.
        """
        ...

    def has_work(self) -> bool: ...

    def stats(self) -> SchedulerStats | None: ...

    def execute_dummy_batch(self) -> None: ...

    def collective(self) -> Collective | None: ...

    def phase(self) -> str | None:
        """Why no token comes although there is work ("paused", "grammar"), or None."""
        ...

    def release_memory(self, kind: Memory) -> None:
        """Give memory named in `EngineInfo.releasable` back to the system. No step follows until it was restored.

        Without "kv_cache" nothing that was computed is left: requests that still run are computed again later.
        """
        ...

    def restore_memory(self, kind: Memory) -> None:
        """Get it again. What this raises fails the operation, which may be tried once more."""
        ...

    def on_executor_failure(self, callback: FailureCallback) -> None:
        """Call back, from any thread, when something that the engine depends on has failed for good."""
        ...

    def shutdown(self) -> None: ...


class Engine:
    """Defaults for everything that an engine may leave out."""

    def info(self) -> EngineInfo:
        return EngineInfo()

    def preprocess(self, request: EngineCoreRequest) -> Any:
        return request

    def token_limit(self, request: EngineCoreRequest) -> int:
        """How many tokens the request may get: its own limit, or what the context has left."""
        room = max(1, self.info().max_model_len - len(request.prompt_token_ids or ()))
        wanted = request.sampling_params.max_tokens if request.sampling_params else None
        return room if wanted is None else min(wanted, room)

    def add_request(self, request_id: str, prepared: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define add_request")

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define abort_requests")

    def step(self, take_aborts: TakeAborts) -> StepResult:
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def has_work(self) -> bool:
        raise NotImplementedError(f"{type(self).__name__} must define has_work")

    def stats(self) -> SchedulerStats | None:
        return None

    def execute_dummy_batch(self) -> None:
        """Nothing to do for an engine that does not run in lockstep."""

    def collective(self) -> Collective | None:
        return None

    def phase(self) -> str | None:
        return None

    def release_memory(self, kind: Memory) -> None:
        """Nothing is releasable by default."""

    def restore_memory(self, kind: Memory) -> None:
        """Nothing was released."""

    def on_executor_failure(self, callback: FailureCallback) -> None:
        """Nothing to report by default."""

    def shutdown(self) -> None:
        """Nothing to release by default."""


def operation(method: F) -> F:
    """Mark a method of an engine as callable from its clients.

    Arguments are converted to the annotated types; the return value must fit msgpack and may be a
    `concurrent.futures.Future` of such a value.
    """
    method.__muro_operation__ = True  # type: ignore[attr-defined]
    return method
