"""What a client of engines promises, in two Protocols: for threads, and for asyncio. No behaviour here.

The rules that hold for every client:

- A request that was accepted ends exactly once for its caller: with a final output, with an error, or by the
  caller's own abort. Outputs carry the caller's id; they are deltas.
- A client is read in one of two ways, never both: in batches (`add_request`, `get_outputs`), or request by
  request (`generate`). The first use decides; the other one then raises UsageError.
- An id may be used again as soon as its request has ended for its caller. The same id twice in flight raises
  InvalidRequestError.
- FinishReason.ABORT is delivered as an ordinary last output. FinishReason.ERROR is raised by `generate` as a
  RequestError; in a batch it is an output with `error` set.
- When an engine dies, its requests and calls end with EngineDeadError, and requests in batches with an output ERROR
  that is retryable. The others go on, and later requests go to them.
- When the last one dies, everything that waits and every later use raises EngineDeadError with the cause. Batches
  that had arrived before are delivered first. After `close` it is ClientClosedError.
- With a restart policy (`ConnectConfig.restart`) that error says `restarting`, and the client lives on: once another
  engine serves (`wait_serving`), it takes requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from muro.ids import EngineRank, Generation
from muro.wire.handshake import ReadyResponse
from muro.wire.ops import Op
from muro.wire.output import EngineCoreOutput
from muro.wire.progress import Progress
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

Reply = TypeVar("Reply")


class OutputBatch(msgspec.Struct, frozen=True):
    """What one message of an engine brought. False if it holds no outputs (statistics alone, or time was up)."""

    outputs: list[EngineCoreOutput] = []
    engine: EngineRank | None = None
    timestamp: float = 0.0
    """The engine's monotonic seconds, the clock of the outputs' events."""
    scheduler_stats: SchedulerStats | None = None

    def __bool__(self) -> bool:
        return bool(self.outputs)


NO_OUTPUTS = OutputBatch()


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as its client knows it; reading it asks the engine nothing."""

    rank: EngineRank
    generation: int = 0
    state: str
    """"joining", "serving", "dead", "restarting" (dead, and a successor is on its way), "leaving" (it finishes what it
    has), "left" (its process ends) or "replaced"."""
    ready: ReadyResponse | None = None
    """What the engine said of itself when it was ready."""
    pid: int | None = None
    """None for an engine that was started elsewhere, or that lives in this process."""
    progress: Progress | None = None
    """Its progress page; None for an engine that was started elsewhere."""
    in_flight: int = 0
    """Requests of this client on it."""
    restarts: int = 0
    """How often a successor was started on this rank, whether it came to serve or not."""
    uptime: float | None = None
    """Seconds since it is ready, as far as its process is known here."""
    last_step_age: float | None = None
    """Seconds since its last step ended; None if there was none, or without a page."""
    last_report_age: float | None = None
    """Seconds since its last statistics came; None if none have come."""
    error: str = ""
    """Why it is dead."""


class OutputStream(Iterator[EngineCoreOutput], Protocol):
    """Outputs of one request, the last one with a finish reason. Dropping it aborts the request."""

    def close(self) -> None:
        """Abort the request if it has not ended."""
        ...


class AsyncOutputStream(Protocol):
    """Outputs of one request, the last one with a finish reason. Dropping it aborts the request.

    Use it in one `async for`; breaking out of it, cancelling its task or losing the stream aborts the request.
    """

    @property
    def engine(self) -> tuple[EngineRank, Generation] | None:
        """Rank and generation of the engine that the request was sent to; None: to none yet."""
        ...

    def __aiter__(self) -> AsyncIterator[EngineCoreOutput]: ...

    def __anext__(self) -> Awaitable[EngineCoreOutput]: ...

    def pending(self) -> list[EngineCoreOutput]:
        """Take the outputs that have come already, without waiting; what would be raised is left for `anext`."""
        ...

    async def aclose(self) -> None:
        """Abort the request if it has not ended."""
        ...


class EngineCoreClient(Protocol):
    """A client for threads. Its methods may be called from several threads at once."""

    def add_request(self, request: EngineCoreRequest) -> EngineRank:
        """Send a request whose outputs come in batches; gives the rank of its engine.

        Raises InvalidRequestError, EngineDeadError.
        """
        ...

    def get_outputs(self, timeout: float | None = None) -> OutputBatch:
        """Wait for the next batch, at most `timeout` seconds (None: for ever); an empty one if time is up."""
        ...

    def generate(self, request: EngineCoreRequest) -> OutputStream:
        """Send a request; returns the iterator over its outputs. Raises as `add_request`."""
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests; ids that are not in flight are ignored. A stream of one of them ends with ABORT."""
        ...

    def call(self, op: Op[Reply] | str, *args: Any, timeout: float | None = None, engine: int | None = None) -> Reply:
        """Run an operation on one engine, or on all (None); returns the answer of the lowest rank.

        Raises UnknownOperationError, CallFailedError (also if only one of them fails), CallTimeoutError,
        InvalidRequestError if an argument cannot be sent.
        """
        ...

    def call_all(self, op: Op[Reply] | str, *args: Any, timeout: float | None = None) -> dict[EngineRank, Reply]:
        """As `call` on all engines; returns every answer."""
        ...

    def engines(self) -> list[EngineStatus]:
        """How each engine is, by rank."""
        ...

    def check_health(self) -> None:
        """Raises EngineDeadError or ClientClosedError if no request can be served. Asks the engine nothing."""
        ...

    def wait_serving(self, timeout: float | None = None, *, engine: int | None = None) -> None:
        """Return when an engine serves, or that of one rank.

        Raises EngineDeadError: with `restarting` if `timeout` seconds are over, without it if there will be none.
        """
        ...

    def scale(self, engines: int, *, drain_timeout: float | None = ...) -> None:
        """Change the number of engines while they serve; returns when it is so.

        New ones are started here, and know nothing of what the others were told by calls. Those with the highest ranks
        leave: they get no more requests, and end when they have finished theirs (in batches: when the last outputs
        were taken), or after `drain_timeout` seconds (None: never); then their requests end with EngineDeadError. An
        interrupt gives up what has not happened yet.

        Raises InvalidRequestError (there cannot be so many), UsageError (it cannot be done here, or is being done
        already), StartupError (not all new ones came up).
        """
        ...

    def close(self, timeout: float | None = None) -> None:
        """Stop the engines that were started here and release everything; what waits raises ClientClosedError.

        May be called twice and from any thread. An engine that has not ended after `timeout` seconds (None: as
        configured) is killed.
        """
        ...


class AsyncEngineCoreClient(Protocol):
    """A client for one asyncio loop, the one that ran when it was made; elsewhere its methods raise UsageError.

    What never waits (`add_request`, `generate`, `abort`, `engines`, `check_health`) is not a coroutine. Only
    `close` may be called from other threads.
    """

    max_unread_tokens: int | None
    """How far the reader of a stream may be behind before its request ends with SlowReaderError; None: any distance."""

    def add_request(self, request: EngineCoreRequest) -> EngineRank: ...

    def get_outputs(self, timeout: float | None = None) -> Awaitable[OutputBatch]: ...

    def generate(self, request: EngineCoreRequest) -> AsyncOutputStream: ...

    def abort(self, request_ids: Iterable[str]) -> None: ...

    def call(
        self, op: Op[Reply] | str, *args: Any, timeout: float | None = None, engine: int | None = None
    ) -> Awaitable[Reply]: ...

    def call_all(
        self, op: Op[Reply] | str, *args: Any, timeout: float | None = None
    ) -> Awaitable[dict[EngineRank, Reply]]: ...

    def engines(self) -> list[EngineStatus]: ...

    def load_counted_at(self) -> float | None:
        """When, on the monotonic clock, the coordinator last said how much all engines have; None if it never did."""
        ...

    def check_health(self) -> None: ...

    def wait_serving(self, timeout: float | None = None, *, engine: int | None = None) -> Awaitable[None]: ...

    def scale(self, engines: int, *, drain_timeout: float | None = ...) -> Awaitable[None]: ...

    def close(self, timeout: float | None = None) -> None:
        """As for threads; blocks. Inside the loop, `aclose` is better."""
        ...

    def aclose(self, timeout: float | None = None) -> Awaitable[None]:
        """Close without blocking the loop."""
        ...
