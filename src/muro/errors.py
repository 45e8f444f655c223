"""Every error that muro raises on purpose, in one tree.

An error says whose fault it is, what died, and what to do next. Each class has a stable `code`, which
crosses the wire (see `wire.failure`), and the HTTP `status` that the server answers with.

    MuroError                       never raised itself
     |- ConfigError                 a setting is wrong; nothing was started
     |   `- MissingExtraError       an optional dependency is not installed
     |- RequestError                this one request failed; everything else goes on
     |   |- InvalidRequestError     the caller's fault: a value is wrong
     |   |   |- PromptTooLongError
     |   |   `- UnsupportedOptionError
     |   |- BodyTooLargeError
     |   |- NotFoundError           no such model, route or adapter
     |   |- OverloadedError         full at the moment; try again later
     |   |- DeadlineError           not done by the time that was asked for, or at all allowed
     |   |- SlowBodyError           its body did not arrive in time
     |   |- SlowReaderError         its output was not taken in time
     |   |- UnauthorizedError       no valid API key
     |   |- RequestAbortedError     ended by the engine before it was done (pause, shutdown)
     |   `- RequestFailedError      the engine could not serve it
     |- CallError                   this one operation failed
     |   |- UnknownOperationError   not on the list
     |   |- CallFailedError         it raised in the engine
     |   `- CallTimeoutError        no answer in time; it may still happen
     |- StartupError                an engine did not come up: rank, phase, exit status, last log lines
     |- EngineDeadError             an engine ended under us: rank, generation, pid, exit status, cause
     |   `- CrashLoopError          it died so often that it is not started again
     |- ClientClosedError           you closed the client
     |- UsageError                  an object is used in a way that it does not allow
     |- ProtocolError               bytes that are not the protocol
     |   |- LocalProtocolError      we were asked to send them: our caller's fault
     |   `- RemoteProtocolError     a peer sent them
     `- InternalError               our bug; please report it
"""

from __future__ import annotations


class MuroError(Exception):
    """Base of all errors of this package; cannot be raised itself."""

    code: str = "error"
    status: int = 500

    def __init__(self, message: str = "") -> None:
        if type(self) is MuroError:
            raise TypeError("MuroError is a base class; raise one of its subclasses")
        super().__init__(message)
        self.message = message


class ConfigError(MuroError):
    """A setting is wrong. The message names the setting and a value that works."""

    code = "config"
    status = 500


class MissingExtraError(ConfigError):
    """An optional dependency is missing.

    Args:
        what: what was asked for, in people's words.
        extra: the extra of `pip install muro[EXTRA]` that brings it.
    """

    code = "missing_extra"
    status = 501

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra that is not installed: pip install 'muro[{extra}]'")
        self.what = what
        self.extra = extra


class RequestError(MuroError):
    """One request failed; the engine, the client and all other requests are fine."""

    code = "request"
    status = 500

    def __init__(self, message: str = "", *, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class InvalidRequestError(RequestError):
    """The request is wrong and must be changed; `param` names the field."""

    code = "invalid_request"
    status = 400

    def __init__(self, message: str = "", *, request_id: str | None = None, param: str | None = None) -> None:
        super().__init__(message, request_id=request_id)
        self.param = param


class PromptTooLongError(InvalidRequestError):
    """Prompt (and requested output) do not fit into the model's context."""

    code = "prompt_too_long"


class UnsupportedOptionError(InvalidRequestError):
    """The option is understood but this engine or server does not offer it."""

    code = "unsupported_option"


class BodyTooLargeError(RequestError):
    """The request is over the size limit of a door."""

    code = "body_too_large"
    status = 413


class NotFoundError(RequestError):
    """What the request names does not exist here."""

    code = "not_found"
    status = 404


class OverloadedError(RequestError):
    """No room at the moment; `retry_after` is a hint in seconds."""

    code = "overloaded"
    status = 503

    def __init__(self, message: str = "", *, request_id: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message, request_id=request_id)
        self.retry_after = retry_after


class DeadlineError(RequestError):
    """The request was not done by its deadline; the message says which one. What it had is lost or already sent."""

    code = "deadline"
    status = 504


class SlowBodyError(RequestError):
    """The body of the request did not arrive in time."""

    code = "slow_body"
    status = 408


class SlowReaderError(RequestError):
    """The output came faster than its reader took it, by more than the limit; the request was ended."""

    code = "slow_reader"
    status = 408


class UnauthorizedError(RequestError):
    """The caller showed no API key, or a wrong one. `code` is OpenAI's word."""

    code = "invalid_api_key"
    status = 401


class RequestAbortedError(RequestError):
    """The engine ended the request before it was done, for instance because it shuts down or pauses."""

    code = "aborted"
    status = 503


class RequestFailedError(RequestError):
    """The engine could not serve this request."""

    code = "request_failed"
    status = 500


class CallError(MuroError):
    """One operation failed; `method` names it."""

    code = "call"
    status = 500

    def __init__(self, message: str = "", *, method: str = "") -> None:
        super().__init__(message)
        self.method = method


class UnknownOperationError(CallError):
    """The operation is not on the engine's list."""

    code = "unknown_operation"
    status = 404


class CallFailedError(CallError):
    """The operation raised in the engine; the message is the engine's."""

    code = "call_failed"
    status = 500


class CallTimeoutError(CallError):
    """No answer in time. The operation may still take effect."""

    code = "call_timeout"
    status = 504


LOG_FOLLOWS = ". Last lines of its log:"
"""What stands before the `log_tail` at the end of a message."""


class StartupError(MuroError):
    """An engine did not come up. Everything that had been started is gone again.

    Attributes:
        rank: data-parallel rank, or None if no single rank is to blame.
        phase: what it was doing, for instance "handshake" or "loading".
        pid: process id, or None for an engine that was started elsewhere.
        exit_status: exit code, or minus the signal number, or None if it did not exit.
        log_tail: the last lines that the engine wrote.
    """

    code = "startup"
    status = 503

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        phase: str = "",
        pid: int | None = None,
        exit_status: int | None = None,
        log_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.phase = phase
        self.pid = pid
        self.exit_status = exit_status
        self.log_tail = log_tail


class EngineDeadError(MuroError):
    """An engine has ended; requests that were running on it are lost.

    Attributes: as for `StartupError`, and
        generation: how often this rank had been restarted.
        restarting: whether a successor is on its way; then the same request may be sent again later.
        retry_after: when that may be, a hint in seconds; None if there will be none.
        stuck: whether it was killed because it did nothing any more.
    """

    code = "engine_dead"
    status = 503

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        generation: int = 0,
        phase: str = "",
        pid: int | None = None,
        exit_status: int | None = None,
        log_tail: str = "",
        restarting: bool = False,
        retry_after: float | None = None,
        stuck: bool = False,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.generation = generation
        self.phase = phase
        self.pid = pid
        self.exit_status = exit_status
        self.log_tail = log_tail
        self.restarting = restarting
        self.retry_after = retry_after
        self.stuck = stuck


class CrashLoopError(EngineDeadError):
    """An engine died more often than its restart budget allows; it is not started again. Carries the last death."""

    code = "crash_loop"


class ClientClosedError(MuroError):
    """The client was closed by its owner."""

    code = "client_closed"
    status = 503


class UsageError(MuroError):
    """An object is used in a way that it does not allow: a second reader, another event loop, after a fork."""

    code = "usage"
    status = 500


class ProtocolError(MuroError):
    """Bytes or values that are not the protocol. Costs one message, never a process."""

    code = "protocol"
    status = 500


class LocalProtocolError(ProtocolError):
    """We were asked to send what the protocol cannot or must not carry."""

    code = "local_protocol"
    status = 400


class RemoteProtocolError(ProtocolError):
    """A peer sent what is not the protocol."""

    code = "remote_protocol"
    status = 502


class InternalError(MuroError):
    """A bug of ours: please report it with the traceback."""

    code = "internal"
    status = 500
