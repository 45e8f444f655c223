"""What the host takes (events) and gives (routed outputs). Values only."""

from __future__ import annotations

from typing import Any

import msgspec

from muro.ids import ClientIndex
from muro.wire.output import EngineCoreOutputs


class Routed(msgspec.Struct):
    """A message and where it goes: a client, or `ids.COORDINATOR`.

    `method` names the operation that a utility result belongs to, for errors about results that cannot
    be encoded.
    """

    client: ClientIndex
    message: EngineCoreOutputs
    method: str = ""


class Add(msgspec.Struct):
    """A request that was decoded and preprocessed.

    `client` gets the answers; `origin` is the client whose socket it came from and whose ABORT ends it
    (they differ only for peers that speak for others). `size` in bytes counts against the admission limit.
    """

    client: ClientIndex
    origin: ClientIndex
    request_id: str
    wave: int
    prepared: Any
    size: int = 0


class Abort(msgspec.Struct):
    """Requests that a client wants ended. The same object lies in the fast and in the ordered queue.

    `done` is set once the ordered one was applied, so that the fast one cannot hit a later request that
    reuses an id.
    """

    origin: ClientIndex
    request_ids: list[str]
    done: bool = False


class Call(msgspec.Struct):
    """A utility call."""

    client: ClientIndex
    call_id: int
    method: str
    args: list[Any]


class StartWave(msgspec.Struct):
    """Data parallel: all ranks but `exclude` start stepping for `wave`."""

    wave: int
    exclude: int | bytes | None = None


class DropClient(msgspec.Struct):
    """A client does not read: all its requests end with ABORT."""

    client: ClientIndex


class ExecutorFailed(msgspec.Struct):
    """Something that the engine depends on has failed for good; the loop ends with this cause."""

    cause: Any


class Wakeup(msgspec.Struct):
    """Nothing to do but look around."""


WAKEUP = Wakeup()

Event = Add | Abort | Call | StartWave | DropClient | ExecutorFailed | Wakeup
