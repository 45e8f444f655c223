"""Any error -> status, headers and body in OpenAI's shape: `{"error": {message, type, param, code}}`.

Our own errors are shown as they are, without the log of an engine that has died: their texts are written for callers.
Of anything else a caller learns only that it was our bug; the log has the rest.
"""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec

from muro.errors import (
    LOG_FOLLOWS,
    EngineDeadError,
    InvalidRequestError,
    MuroError,
    OverloadedError,
    UnauthorizedError,
)
from muro.wire.request import EngineCoreRequest, SamplingParams

_OPTIONS = {*SamplingParams.__struct_fields__, *EngineCoreRequest.__struct_fields__}


class ErrorDetail(msgspec.Struct):
    """OpenAI's error object. `code` is the stable code of `muro.errors`; `param` the option that is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The whole body of a failed request, and the data of the last event of a stream that fails."""

    error: ErrorDetail


class ErrorReply(msgspec.Struct, frozen=True):
    """What to answer."""

    status: int
    body: ErrorBody
    headers: dict[str, str] = {}


def reply_to(err: BaseException) -> ErrorReply:
    """The answer to a request that ended in this error."""
    if not isinstance(err, MuroError):
        return reply(500, "internal error of the server; its log says more", code="internal")
    param = (err.param or _named(err.message)) if isinstance(err, InvalidRequestError) else None
    again = err.retry_after if isinstance(err, OverloadedError | EngineDeadError) else None
    headers = {} if again is None else {"retry-after": str(max(1, math.ceil(again)))}
    if isinstance(err, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"  # which a 401 must have (RFC 9110, 15.5.2)
    return reply(err.status, without_log(err.message), code=err.code, param=param, headers=headers)


def _named(message: str) -> str | None:
    """The option that an engine's message begins with: the wire has no place for it apart."""
    word = message.partition(" ")[0]
    return word if word in _OPTIONS else None


def without_log(message: str) -> str:
    """What anybody may read: a death and its cause, but no log lines, which name files and data."""
    told, found, _ = message.partition(LOG_FOLLOWS)
    return f"{told}. Its last lines are in the server's log" if found else message


def reply(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> ErrorReply:
    """An answer in OpenAI's shape; its `type` follows from the status."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return ErrorReply(status, ErrorBody(ErrorDetail(message, kind, param, code)), headers or {})


def raw(answer: ErrorReply, request_id: str) -> bytes:
    """The whole answer to a request as it travels over HTTP/1.1."""
    body = msgspec.json.encode(answer.body)
    status = HTTPStatus(answer.status)
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {request_id}",
    ]
    head += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join([*head, "\r\n"]).encode() + body
