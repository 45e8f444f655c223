"""Errors on their way between processes: the only translation between `muro.errors` and what travels.

Four ways: the `error` of a finished request, the text of a failed call, the exit status of a process, and the
record that a failing child leaves behind. Nothing here decides what follows from a failure.
"""

from __future__ import annotations

import enum
import signal
import traceback
from typing import Final

import msgspec

from muro.errors import (
    BodyTooLargeError,
    CallError,
    CallFailedError,
    DeadlineError,
    InvalidRequestError,
    MuroError,
    NotFoundError,
    OverloadedError,
    PromptTooLongError,
    RemoteProtocolError,
    RequestAbortedError,
    RequestError,
    RequestFailedError,
    SlowBodyError,
    SlowReaderError,
    UnauthorizedError,
    UnknownOperationError,
    UnsupportedOptionError,
)
from muro.wire.output import FinishReason, OutputError

VALIDATION_ERROR: Final = "validation_error"
"""The protocol's own word (0.33) for a request that is wrong; front-ends answer it with 400."""
ENGINE_PAUSED: Final = "engine_paused"
"""The protocol's own word (0.33) for a request that met a paused engine."""
SHUTTING_DOWN: Final = "Server shutting down"
"""Failure message of every call that reaches an engine on its way out."""

MAX_MESSAGE_CHARS: Final = 8192
MAX_RECORD_BYTES: Final = 65536

_BY_CODE: Final[dict[str, type[RequestError]]] = {
    VALIDATION_ERROR: InvalidRequestError,
    ENGINE_PAUSED: RequestAbortedError,
    **{
        cls.code: cls
        for cls in (
            InvalidRequestError,
            PromptTooLongError,
            UnsupportedOptionError,
            BodyTooLargeError,
            NotFoundError,
            OverloadedError,
            DeadlineError,
            SlowBodyError,
            SlowReaderError,
            UnauthorizedError,
            RequestAbortedError,
            RequestFailedError,
        )
    },
}
_RETRYABLE: Final = (OverloadedError, RequestAbortedError)


class ExitCode(enum.IntEnum):
    """With what an engine process ends."""

    STOPPED = 0
    """It was asked to stop, and did."""
    CONFIG = 2
    """Its settings or its command line are wrong; starting it again cannot help."""
    ENGINE_FAILED = 10
    """The engine, or a thread that it cannot live without, failed while serving."""
    STARTUP_FAILED = 11
    """It failed before it was ready."""
    LOST_PARENT = 12
    """The process that it was started for has gone."""
    CRASH_LOOP = 13
    """Of a server: its engine died more often than its restart budget allows."""


_EXIT_WORDS: Final = {
    ExitCode.STOPPED: "it was asked to stop",
    ExitCode.CONFIG: "its settings are wrong",
    ExitCode.ENGINE_FAILED: "the engine failed",
    ExitCode.STARTUP_FAILED: "it failed to start",
    ExitCode.LOST_PARENT: "its parent had gone",
    ExitCode.CRASH_LOOP: "its engine died again and again",
}
_FORCED: Final = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""See `child.signals`."""
_SIGNAL_HINTS: Final = {
    "SIGKILL": "the kernel kills so when memory runs out: see dmesg",
    "SIGSEGV": "a fault in native code",
    "SIGBUS": "a fault in native code, or a full /dev/shm",
    "SIGILL": "native code built for another processor",
    "SIGABRT": "native code gave up",
    "SIGTERM": "somebody asked it to stop",
}


def describe_exit(status: int | None) -> str:
    """An exit status in words: exit code, or minus a signal's number; None for a process that has not ended."""
    if status is None:
        return "it has not ended"
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        hint = _SIGNAL_HINTS.get(name)
        return f"killed by {name}" + (f" ({hint})" if hint else "")
    if status in _FORCED:
        return f"exit code {status} (it was forced by the fifth stop signal)"
    words = _EXIT_WORDS.get(ExitCode(status)) if status in ExitCode._value2member_map_ else None
    return f"exit code {status}" + (f" ({words})" if words else "")


class FailureRecord(msgspec.Struct, frozen=True):
    """What a failing child process leaves for its parent: where it was, what happened.

    `kind` is the name of the exception's class, `code` the stable code if it was one of `muro.errors`.
    """

    phase: str
    kind: str
    message: str
    traceback: str = ""
    code: str = ""

    @classmethod
    def of(cls, phase: str, error: BaseException) -> FailureRecord:
        """The record of an exception."""
        return cls(
            phase=phase,
            kind=type(error).__name__,
            message=_text(error),
            traceback="".join(traceback.format_exception(error)),
            code=error.code if isinstance(error, MuroError) else "",
        )

    def encode(self) -> bytes:
        """JSON of at most MAX_RECORD_BYTES; the beginning of a long traceback is cut off."""
        keep = MAX_RECORD_BYTES // 12  # a character takes up to 6 bytes as JSON
        record = msgspec.structs.replace(
            self, phase=self.phase[:64], kind=self.kind[:64], message=self.message[: keep // 2], code=self.code[:64],
            traceback=self.traceback[-keep:],
        )  # fmt: skip
        return msgspec.json.encode(record)

    @classmethod
    def decode(cls, data: bytes) -> FailureRecord:
        """The reverse of `encode`. Raises RemoteProtocolError for anything else, for instance half a record."""
        if len(data) > MAX_RECORD_BYTES:
            raise RemoteProtocolError(f"failure record of {len(data)} bytes; the limit is {MAX_RECORD_BYTES}")
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"failure record cannot be read: {error}") from error


def error_to_wire(error: BaseException) -> OutputError:
    """What a request that ended by `error` carries.

    A wrong request travels as the protocol's `validation_error`, all others under the stable code of their
    class, and foreign exceptions as "internal".
    """
    message = _text(error)
    if type(error) is InvalidRequestError:
        return OutputError(VALIDATION_ERROR, message)
    if isinstance(error, MuroError):
        return OutputError(error.code, message, retryable=isinstance(error, _RETRYABLE))
    return OutputError("internal", f"{type(error).__name__}: {message}")


def error_from_wire(
    error: OutputError | None, finish: FinishReason | None = FinishReason.ERROR, *, request_id: str | None = None
) -> RequestError:
    """What the caller of a request that ended with ERROR or ABORT is told.

    Releases before 0.33 give no reason: `error` is None.
    """
    if error is None:
        if finish == FinishReason.ABORT:
            return RequestAbortedError("the engine ended the request before it was done", request_id=request_id)
        return RequestFailedError(
            "the engine could not serve the request and gave no reason; see its log", request_id=request_id
        )
    cls = _BY_CODE.get(error.code)
    if cls is not None:
        return cls(error.message, request_id=request_id)
    kind: type[RequestError] = OverloadedError if error.retryable else RequestFailedError
    return kind(f"{error.code}: {error.message}", request_id=request_id)


def call_failure_text(method: str, error: BaseException) -> str:
    """The failure message of a call that ended by `error`, in the words that vLLM uses."""
    reason = f"no operation {method!r}" if isinstance(error, UnknownOperationError) else _text(error)
    return f"Call to {method} method failed: {reason}"


def call_error(method: str, failure_message: str) -> CallError:
    """What the caller of `method` is told when the engine answered with a failure message."""
    unknown = (f"no operation {method!r}", f"has no attribute {method!r}")
    if failure_message.endswith(unknown):
        return UnknownOperationError(
            f"the engine has no operation {method!r} (it said: {failure_message})", method=method
        )
    return CallFailedError(failure_message, method=method)


def _text(error: BaseException) -> str:
    """An error's message, never empty, never long, always encodable."""
    try:
        text = error.message if isinstance(error, MuroError) else str(error)
    except Exception:  # an exception of an engine's own may fail even at this, and must still be told
        text = "(it cannot be put into words)"
    text = (text or type(error).__name__).encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + " ..."
