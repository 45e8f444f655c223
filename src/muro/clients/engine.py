"""One engine as a session knows it: rank, generation, state. Pure, and a table."""

from __future__ import annotations

import copy
import enum
from typing import TypeVar

from muro.errors import EngineDeadError, InternalError, MuroError
from muro.ids import EngineRank, Generation
from muro.wire.codec import RequestEncoder
from muro.wire.frames import identity_of
from muro.wire.handshake import ReadyResponse
from muro.wire.releases import NEWEST, layout_of_engine

FIRST = Generation(0)

Error = TypeVar("Error", bound=MuroError)


def again(error: Error) -> Error:
    """A copy to raise: one exception must not collect the tracebacks of several callers."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh


class EngineState(enum.Enum):
    """Where an engine of one generation is."""

    JOINING = "joining"
    SERVING = "serving"
    DEAD = "dead"
    REPLACED = "replaced"
    LEFT = "left"
    """Somebody wants it no more; its process ends."""


TRANSITIONS = {
    (EngineState.JOINING, "joined"): EngineState.SERVING,
    (EngineState.JOINING, "died"): EngineState.DEAD,
    (EngineState.SERVING, "died"): EngineState.DEAD,
    (EngineState.DEAD, "replaced"): EngineState.REPLACED,
    (EngineState.SERVING, "left"): EngineState.LEFT,
    (EngineState.DEAD, "left"): EngineState.LEFT,
}
"""What may happen to an engine, and where it is then. A replaced one stays so: its successor is another engine."""


class KnownEngine:
    """One generation of one rank."""

    def __init__(self, rank: EngineRank, generation: Generation = FIRST) -> None:
        self.rank = rank
        self.generation = generation
        self.identity = identity_of(rank)
        self.state = EngineState.JOINING
        self.ready: ReadyResponse | None = None
        self.error: MuroError | None = None
        self.doomed: MuroError | None = None
        """Why it takes no more requests although it is not buried yet: what it has sent is still being read."""
        self.leaving = False
        """Whether it gets no more requests because it is to leave when it has finished those that it has."""
        self.encoder = RequestEncoder(NEWEST)

    @property
    def serving(self) -> bool:
        return self.state is EngineState.SERVING

    @property
    def alive(self) -> bool:
        """Whether it works on requests."""
        return self.serving and self.doomed is None

    @property
    def lockstep(self) -> bool:
        """Whether it steps together with others, without whom it can do nothing."""
        return self.ready is not None and self.ready.data_parallel_size > 1

    @property
    def open(self) -> bool:
        """Whether it takes requests."""
        return self.serving and self.doomed is None and not self.leaving

    def joined(self, ready: ReadyResponse | None) -> None:
        """It is ready; requests are written in the layout that it understands (None: it is in this process)."""
        self._move("joined")
        self.ready = ready
        if ready is not None and ready.muro is None:
            self.encoder = RequestEncoder(layout_of_engine(ready.vllm_version))

    @property
    def restarting(self) -> bool:
        """Whether it has died and a successor is on its way."""
        return self.state is EngineState.DEAD and isinstance(self.error, EngineDeadError) and self.error.restarting

    def died(self, generation: int, error: MuroError) -> bool:
        """It has died; whether that was news: another generation's death and a second one are not.

        The death of a successor that never served is no news either, but becomes the reason why there is none.
        """
        if generation > self.generation and self.state is EngineState.DEAD:
            self.error = error
        if generation != self.generation or (self.state, "died") not in TRANSITIONS:
            return False
        self._move("died")
        self.error = error
        return True

    def left(self, error: MuroError) -> None:
        """It was let go; `error` is for what it had not finished."""
        self._move("left")
        self.error = error

    def replaced_by(self, successor: KnownEngine) -> None:
        """A later generation is about to join; those in between have never served."""
        if successor.rank != self.rank or successor.generation <= self.generation:
            raise InternalError(
                f"engine {self.rank} of generation {self.generation} cannot be followed by engine {successor.rank} "
                f"of generation {successor.generation}"
            )
        self._move("replaced")

    def check_serving(self) -> None:
        """Raises EngineDeadError if it takes no requests."""
        if self.open:
            return
        error = self.error or self.doomed
        if isinstance(error, EngineDeadError):
            raise again(error) from error.__cause__
        if error is not None:
            raise EngineDeadError(error.message, rank=self.rank, generation=self.generation) from error
        raise EngineDeadError(f"engine {self.rank} is {self.state.value}", rank=self.rank, generation=self.generation)

    def _move(self, event: str) -> None:
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise InternalError(f"engine {self.rank} cannot have {event} while {self.state.value}") from None
