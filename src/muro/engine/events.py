"""What the host takes (events) and gives (routed outputs). Values only."""

from __future__ import annotations

from typing import Any

import msgspec

from muro.ids import COORDINATOR, ClientIndex
from muro.wire.output import EngineCoreOutputs


class Routed(msgspec.Struct):
    """A message and where it goes: a client, or `ids.COORDINATOR`.

    `method` names the operation that a utility result belongs to, for errors about results that cannot
    be encoded. `settled` names requests of the client whose earlier outputs, if there were any, all lie before
    this message: the sender's answer to its own `GivenUp`. The message may be empty then.
    """

    client: ClientIndex
    message: EngineCoreOutputs
    method: str = ""
    settled: list[str] | None = None


class Add(msgspec.Struct):
    """A request that was decoded and preprocessed.

    `client` gets the answers; `origin` is the client whose socket it came from and whose ABORT ends it
    (they differ only for peers that speak for others). `size` in bytes counts against the admission limit, `prompt`
    is the prompt's length in tokens.
    """

    client: ClientIndex
    origin: ClientIndex
    request_id: str
    wave: int
    prepared: Any
    size: int = 0
    prompt: int = 0


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
    """Data parallel: all ranks but `exclude` start stepping for `wave`; `origin` said so."""

    wave: int
    exclude: int | bytes | None = None
    origin: ClientIndex = COORDINATOR


class PeersStep(msgspec.Struct):
    """Data parallel: another lockstep rank waits for this one in the agreement of this number, the first is 0."""

    number: int


class CoordinatorUp(msgspec.Struct):
    """The coordinator has said READY: it may be a new one, which knows nothing."""


class GivenUp(msgspec.Struct):
    """The sender has ended these requests of a client by itself, because their outputs could not be sent.

    With `everything` the client does not read: all its other requests end with ABORT. Until the host has said
    that they are `settled`, the sender drops what the engine still has to say about them.
    """

    client: ClientIndex
    request_ids: list[str]
    everything: bool = False


class ExecutorFailed(msgspec.Struct):
    """Something that the engine depends on has failed for good; the loop ends with this cause."""

    cause: Any


class Wakeup(msgspec.Struct):
    """Nothing to do but look around."""


WAKEUP = Wakeup()

OF_THE_LOOP = (StartWave, PeersStep, CoordinatorUp, Wakeup)
"""Events that do nothing to requests."""

Event = Add | Abort | Call | StartWave | PeersStep | CoordinatorUp | GivenUp | ExecutorFailed | Wakeup
