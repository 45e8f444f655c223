"""Control messages from a front-end (or the coordinator) to an engine: ABORT, UTILITY, START_DP_WAVE (section 6)."""

from __future__ import annotations

from typing import Any

import msgspec


class AbortRequest(msgspec.Struct):
    """Requests that their front-end wants ended. On the wire the payload is the bare array of ids."""

    request_ids: list[str]


class UtilityRequest(msgspec.Struct, array_like=True):
    """A call of one listed operation.

    `call_id` is chosen by the caller and echoed: an unsigned 64-bit value for Python front-ends, often above
    2**63. `args` are positional; keyword arguments do not exist.
    """

    client_index: int
    call_id: int
    method: str
    args: list[Any]


class StartDPWave(msgspec.Struct, array_like=True):
    """Data parallel: every rank but `exclude` starts stepping for `wave`.

    `exclude` is a rank, or None, or the two identity bytes that front-ends up to 0.32 send and that exclude
    nobody, because no rank equals them.
    """

    wave: int
    exclude: int | bytes | None = None
