"""The engines of one session by rank, and which of them gets a request. Pure.

What a request costs an engine is counted in one place, the `Balancer`. It counts those engines that serve: when one
dies its count is gone, and what ends later on that generation is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping

from muro.clients.engine import EngineState, KnownEngine
from muro.errors import EngineDeadError, InvalidRequestError, MuroError
from muro.ids import EngineRank, Generation
from muro.parallel.balance import Balancer
from muro.wire.handshake import ReadyResponse
from muro.wire.request import EngineCoreRequest


class Fleet:
    """All engines of a session.

    Args:
        engines: all ranks.
        balancer: chooses among those that serve, which it must know; None: by load alone.
    """

    def __init__(self, engines: Mapping[EngineRank, KnownEngine], balancer: Balancer | None = None) -> None:
        self.engines = dict(sorted(engines.items()))
        serving = [rank for rank, engine in self.engines.items() if engine.open]
        self.balancer = Balancer(serving) if balancer is None else balancer

    def __contains__(self, engine: KnownEngine) -> bool:
        """Whether it is the present engine of its rank."""
        return self.engines.get(engine.rank) is engine

    def named(self, rank: int) -> KnownEngine:
        """The engine that a caller has named. Raises InvalidRequestError."""
        engine = self.engines.get(EngineRank(rank)) if type(rank) is int else None
        if engine is None or engine.leaving:
            ranks = ", ".join(str(rank) for rank, engine in self.engines.items() if not engine.leaving)
            raise InvalidRequestError(f"there is no engine {rank!r} here; ranks: {ranks}", param="data_parallel_rank")
        return engine

    def check_serving(self, rank: int | None = None) -> None:
        """Raises EngineDeadError: no engine takes requests, or not that of `rank`; of several the one that comes back
        says why, else the one that has just died."""
        if rank is not None:
            self.named(rank).check_serving()
        elif not self.balancer.ranks:
            engines = list(self.engines.values())
            coming = [engine for engine in engines if engine.restarting]
            dying = [engine for engine in engines if engine.serving]
            next(iter([*coming, *dying, *engines])).check_serving()

    def choose(self, request: EngineCoreRequest, now: float) -> KnownEngine:
        """The engine for a request, which counts as its own until `ended`; `now` as for `Balancer.choose`.

        Raises InvalidRequestError for a rank that does not exist, EngineDeadError.
        """
        self.check_serving(request.data_parallel_rank)
        lora = request.lora_request
        rank = self.balancer.choose(
            now,
            rank=request.data_parallel_rank,
            prompt_token_ids=request.prompt_token_ids or (),
            salt=(request.cache_salt, None if lora is None else lora.lora_name),
        )
        return self.engines[rank]

    def ended(self, engine: KnownEngine) -> None:
        """A request that was on an engine has ended, however."""
        if engine.alive and engine in self:
            self.balancer.finished(engine.rank)

    def in_flight(self, rank: EngineRank) -> int:
        """Requests on the engine of a rank; none on one that does not serve."""
        return self.balancer.in_flight(rank)

    def doom(self, dying: Mapping[EngineRank, EngineDeadError]) -> None:
        """These have died: no request goes there any more. What they had sent may still come, until `died`."""
        for rank, error in dying.items():
            engine = self.engines.get(rank)
            if engine is not None and engine.alive and engine.generation == error.generation:
                engine.doomed = error
                self.balancer.lost(rank)

    def died(self, rank: EngineRank, generation: int, error: MuroError) -> KnownEngine | None:
        """An engine has died; gives it if that was news (see `KnownEngine.died`)."""
        engine = self.engines.get(rank)
        if engine is None or not engine.died(generation, error):
            return None
        self.balancer.lost(rank)
        return engine

    def succeeded(self, rank: EngineRank, generation: Generation, ready: ReadyResponse | None) -> None:
        """A later generation of a rank serves; nothing happens if that is known.

        Raises InternalError if the old one still lives.
        """
        old = self.engines.get(rank)
        if old is not None and generation > old.generation and old.state is not EngineState.LEFT:
            engine = KnownEngine(rank, generation)
            old.replaced_by(engine)
            self.engines[rank] = engine
            engine.joined(ready)
            engine.leaving = old.leaving
            if not engine.leaving:
                self.balancer.join(rank)

    def add(self, rank: EngineRank, generation: Generation, ready: ReadyResponse | None) -> None:
        """An engine of a new rank serves."""
        engine = self.engines[rank] = KnownEngine(rank, generation)
        engine.joined(ready)
        for other in sorted(self.engines):
            self.engines[other] = self.engines.pop(other)
        self.balancer.join(rank)

    def leave(self, rank: EngineRank) -> None:
        """The engine of a rank gets no more requests; those that it has go on."""
        self.engines[rank].leaving = True
        self.balancer.leave(rank)

    def stay(self, rank: EngineRank) -> None:
        """It was not to leave after all."""
        engine = self.engines[rank]
        engine.leaving = False
        if engine.alive:
            self.balancer.join(rank)

    def left(self, rank: EngineRank, error: MuroError) -> None:
        """It was let go; `error` is for what it had not finished."""
        self.engines[rank].left(error)
        self.balancer.lost(rank)

    def remove(self, rank: EngineRank) -> None:
        """It is gone, and known no more."""
        self.engines.pop(rank, None)
        self.balancer.lost(rank)

    @property
    def hopeless(self) -> bool:
        """Whether no engine serves, and none is on its way; lockstep engines serve together or not at all."""
        engines = self.engines.values()
        gone = [engine for engine in engines if not (engine.serving or engine.restarting)]
        return len(gone) == len(engines) or any(engine.lockstep for engine in gone)
