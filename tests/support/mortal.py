"""An asyncio client of an engine in this process that steps, dies and is replaced when a test says so.

Session, streams and the engine's host are the real ones; only the wire and the processes are left out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from muro.clients.aio_stream import AsyncStream, Feed
from muro.clients.attempt import Attempt
from muro.clients.engine import KnownEngine
from muro.clients.interface import EngineStatus, OutputBatch
from muro.clients.session import Message, Session
from muro.engine.interface import EngineCore
from muro.errors import EngineDeadError
from muro.ids import EngineRank, Generation
from muro.process.proc import ready_response
from muro.testing.harness import StepHarness
from muro.wire.codec import RequestDecoder
from muro.wire.control import AbortRequest
from muro.wire.handshake import Addresses, Features, Init
from muro.wire.request import EngineCoreRequest

RANK = EngineRank(0)
INIT = Init(Addresses(["in"], ["out"]), muro=Features("test"))


def death(status: int = -9, *, restarting: bool = True) -> EngineDeadError:
    return EngineDeadError(f"engine 0 ended with {status}", rank=0, pid=1, exit_status=status, restarting=restarting)


CRASH = death(1)


class MortalClient:
    """What `AsyncLLM` needs of a client. Made in a running loop."""

    def __init__(self, make: Callable[[], EngineCore]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._decoder = RequestDecoder()
        self._serving = asyncio.Event()
        self.sent: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.generation = 0
        self.death: EngineDeadError | None = None
        self.harness: StepHarness
        self.session = Session({RANK: self._born()}, nonce="test")

    def generate(self, request: EngineCoreRequest) -> AsyncStream:
        if self.death is not None:
            raise self.death
        feed = Feed()
        attempt, message = self.session.add(request, feed, time.time())
        self._deliver(message)
        return AsyncStream(self, attempt, feed, self._loop)

    def abort(self, request_ids: Iterable[str]) -> None:
        for message in self.session.abort(request_ids):
            self._deliver(message)

    def engines(self) -> list[EngineStatus]:
        engine = self.session.engines[RANK]
        return [EngineStatus(rank=RANK, generation=engine.generation, state=engine.state.value, ready=engine.ready)]

    def check_health(self) -> None:
        if self.death is not None:
            raise self.death

    async def wait_serving(self, timeout: float | None = None, *, engine: int | None = None) -> None:  # noqa: ASYNC109
        await self._serving.wait()
        if self.death is not None:
            raise self.death

    def reader_gone(self, attempt: Attempt) -> None:
        for message in self.session.drop([attempt]):
            self._deliver(message)

    @property
    def busy(self) -> bool:
        return self.death is None and self.harness.host.has_work()

    def step(self) -> None:
        """One step of the engine, and what it says is heard."""
        if self.busy:
            self.harness.step()
        for routed in self.harness.messages:
            self.session.receive(routed.message)
        self.harness.messages.clear()

    def die(self, error: EngineDeadError | None = None) -> None:
        self.death = error or death()
        self._serving.clear()
        self.session.died(RANK, Generation(self.generation), self.death)

    def give_up(self) -> None:
        """Nobody starts another engine."""
        self.death = death(restarting=False)
        self._serving.set()

    def replace(self) -> None:
        """The next generation serves."""
        self.generation += 1
        self.death = None
        self.session.succeeded(RANK, Generation(self.generation), self._born().ready)
        self._serving.set()

    def _born(self) -> KnownEngine:
        engine = self._make()
        self.harness = StepHarness(engine, log_stats=False)
        known = KnownEngine(RANK, Generation(self.generation))
        known.joined(ready_response(engine.info(), INIT))
        self._serving.set()
        return known

    def _deliver(self, message: Message) -> None:
        request = self._decoder.decode(message[1:])
        if isinstance(request, AbortRequest):
            self.aborted += request.request_ids
            self.harness.abort(*request.request_ids)
        elif isinstance(request, EngineCoreRequest):
            self.sent.append(request)
            self.harness.submit(request)


class MortalBatches:
    """The same for a client that is read in batches: each wait is one step, and some steps are deaths instead.

    Args:
        make: makes an engine.
        deaths: what the engine dies of, by the number of the step.
        swift: whether its successor serves before anybody can ask.
    """

    def __init__(
        self, make: Callable[[], EngineCore], deaths: Mapping[int, EngineDeadError], *, swift: bool = False
    ) -> None:
        self._make = make
        self._deaths = dict(deaths)
        self._swift = swift
        self._decoder = RequestDecoder()
        self.steps = 0
        self.generation = 0
        self.death: EngineDeadError | None = None
        self.patience: list[float | None] = []
        self.harness: StepHarness
        self.session = Session({RANK: self._born()}, nonce="test")

    def add_request(self, request: EngineCoreRequest) -> EngineRank:
        self.check_health()
        self._deliver(self.session.add(request, None, 0.0)[1])
        return RANK

    def get_outputs(self, timeout: float | None = None) -> OutputBatch:
        while (batch := self.session.take_batch()) is None:
            self.session.check()
            assert len(self.session), "waited for outputs although nothing runs"
            self.steps += 1
            death = self._deaths.pop(self.steps, None)
            try:
                if death is None:
                    self.harness.step()
            except Exception:
                death = CRASH
            for routed in self.harness.messages:
                self.session.receive(routed.message)
            self.harness.messages.clear()
            if death is not None:
                self.die(death)
        return batch

    def abort(self, request_ids: Iterable[str]) -> None:
        for message in self.session.abort(request_ids):
            self._deliver(message)

    def engines(self) -> list[EngineStatus]:
        engine = self.session.engines[RANK]
        return [EngineStatus(rank=RANK, generation=engine.generation, state=engine.state.value, ready=engine.ready)]

    def check_health(self) -> None:
        if self.death is not None:
            raise self.death

    def wait_serving(self, timeout: float | None = None, *, engine: int | None = None) -> None:
        self.patience.append(timeout)
        if self.death is not None:
            if not self.death.restarting:
                raise self.death
            self._replace()

    def die(self, death: EngineDeadError) -> None:
        self.death = death
        self.session.died(RANK, Generation(self.generation), death)
        if not death.restarting:
            self.session.end(death)
        elif self._swift:
            self._replace()

    def _replace(self) -> None:
        self.generation += 1
        self.death = None
        self.session.succeeded(RANK, Generation(self.generation), self._born().ready)

    def _born(self) -> KnownEngine:
        engine = self._make()
        self.harness = StepHarness(engine, log_stats=False)
        known = KnownEngine(RANK, Generation(self.generation))
        known.joined(ready_response(engine.info(), INIT))
        return known

    def _deliver(self, message: Message) -> None:
        request = self._decoder.decode(message[1:])
        if isinstance(request, AbortRequest):
            self.harness.abort(*request.request_ids)
        elif isinstance(request, EngineCoreRequest):
            self.harness.submit(request)
