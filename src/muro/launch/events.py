"""What happens to engines, as messages: any number of front-ends may hear them. Pure.

A death with a successor: EngineDied, then for each attempt EngineStarted, EngineProgress ..., and either EngineReplaced
or EngineDied again (of the attempt's generation). A death without one: EngineDied, EngineGivenUp.

One rank more, because somebody wants it: EngineProgress ..., then EngineAdded or EngineUnborn. One less: EngineLeft.
"""

from __future__ import annotations

import msgspec

from muro.errors import EngineDeadError, StartupError
from muro.ids import EngineRank, Generation
from muro.wire.handshake import ReadyResponse


class EngineDied(msgspec.Struct, frozen=True, tag=True):
    """An engine has ended, or announced its end, although nobody had asked it to."""

    rank: EngineRank
    generation: Generation
    error: EngineDeadError
    """For everybody who waits for this engine."""
    restarting: bool = False
    """Whether a successor is on its way."""


class EngineStalled(msgspec.Struct, frozen=True, tag=True):
    """An engine is stuck and is about to be killed; its death follows."""

    rank: EngineRank
    generation: Generation
    words: str
    """What was seen of it."""


class EngineStarted(msgspec.Struct, frozen=True, tag=True):
    """A successor is being started."""

    rank: EngineRank
    generation: Generation
    attempt: int
    """Which one within the budget's window."""
    budget: int
    cause: str
    """Why its predecessor has ended."""


class EngineProgress(msgspec.Struct, frozen=True, tag=True):
    """News of a successor that is starting."""

    rank: EngineRank
    generation: Generation
    phase: str
    percent: float


class EngineReplaced(msgspec.Struct, frozen=True, tag=True):
    """A successor serves."""

    rank: EngineRank
    generation: Generation
    ready: ReadyResponse
    pid: int
    seconds: float
    """Since the death of the generation that served before."""


class EngineGivenUp(msgspec.Struct, frozen=True, tag=True):
    """There will be no successor."""

    rank: EngineRank | None
    """None: an engine that was started elsewhere has announced its death, and nobody can say which one."""
    error: EngineDeadError


class EngineAdded(msgspec.Struct, frozen=True, tag=True):
    """An engine of a new rank serves."""

    rank: EngineRank
    generation: Generation
    ready: ReadyResponse
    pid: int


class EngineUnborn(msgspec.Struct, frozen=True, tag=True):
    """An engine of a new rank did not come up; nothing of it is left."""

    rank: EngineRank
    generation: Generation
    error: StartupError


class EngineLeft(msgspec.Struct, frozen=True, tag=True):
    """The engine of a rank has ended because it was let go, and will not come back."""

    rank: EngineRank
    generation: Generation


Event = (
    EngineDied
    | EngineStalled
    | EngineStarted
    | EngineProgress
    | EngineReplaced
    | EngineGivenUp
    | EngineAdded
    | EngineUnborn
    | EngineLeft
)


def nameless_death() -> EngineGivenUp:
    """An engine has announced its death, and nobody can say more."""
    error = EngineDeadError("an engine has announced that it failed and ends; the cause stands in its own log")
    return EngineGivenUp(None, error)
