"""What callers give to a client: is it of the right kind? Each check says what the right kind is.

Type annotations say the same, but in a notebook nobody reads them.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from typing import Any

from muro.errors import InvalidRequestError, LocalProtocolError, UnsupportedOptionError, UsageError
from muro.wire.frames import Frame
from muro.wire.ops import Op
from muro.wire.request import EngineCoreRequest

MAX_REQUEST_ID = 1024
"""Characters that a caller's request id may have."""


def check_request(request: Any) -> None:
    """Raises InvalidRequestError unless it is a request, with an id, of a kind that is offered."""
    if not isinstance(request, EngineCoreRequest):
        what = f"a request is a muro.EngineCoreRequest, not {type(request).__name__}; for texts there is muro.LLM"
        raise InvalidRequestError(what)
    request_id: Any = request.request_id
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_REQUEST_ID:
        what = f"a request id is a text of 1 to {MAX_REQUEST_ID} characters, not {reprlib.repr(request_id)}"
        raise InvalidRequestError(what, param="request_id")
    if request.resumable:
        raise UnsupportedOptionError("resumable requests are not offered", request_id=request_id, param="resumable")


def check_op(op: Any) -> None:
    """Raises InvalidRequestError unless it is an operation or a name."""
    if not isinstance(op, str | Op):
        what = f"an operation is one of muro.wire.ops, or its name, not {type(op).__name__}"
        raise InvalidRequestError(what, param="op")


def id_list(ids: Any) -> list[str]:
    """Request ids; one alone is one. Raises InvalidRequestError for anything else than texts."""
    listed: list[Any] | None = [ids] if isinstance(ids, str) else list(ids) if isinstance(ids, Iterable) else None
    if listed is None or not all(isinstance(request_id, str) for request_id in listed):
        raise InvalidRequestError(f"what is aborted are request ids, texts, not {ids!r}", param="request_ids")
    return listed


def check_timeout(timeout: Any) -> None:
    """Raises UsageError unless it is a number of seconds, or None."""
    if timeout is not None and (not isinstance(timeout, int | float) or math.isnan(timeout)):
        raise UsageError(f"timeout is {timeout!r}; it must be a number of seconds, or None to wait for ever")


def check_drain_timeout(timeout: Any) -> None:
    """Raises UsageError unless it is a number of seconds from 0 on, or None."""
    if timeout is not None and (not isinstance(timeout, int | float) or not timeout >= 0):
        raise UsageError(f"drain_timeout is {timeout!r}; it must be a number of seconds from 0 on, or None for ever")


def check_size(frames: list[Frame], largest: int) -> list[Frame]:
    """Raises LocalProtocolError for a message over the limit in bytes."""
    size = len(frames[0]) + len(frames[1]) + sum(memoryview(frame).nbytes for frame in frames[2:])
    if size > largest:
        raise LocalProtocolError(f"it has {size} bytes; the limit is {largest} (max_message_bytes)")
    return frames
