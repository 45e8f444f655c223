"""Several engines behind one front-end of bare sockets, with a coordinator's process if asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from muro.config import ConnectConfig, CoordinatorConfig, EngineConfig, LockstepConfig
from muro.ids import EngineRank
from muro.launch.coordinator import CoordinatorKeeper, coordinator_config
from muro.launch.plan import plan_launch
from muro.launch.shutdown import stop
from muro.launch.spawn import Child
from muro.launch.startup import start
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.transport.sockets import Frame, bind_router, bound_address, close, send_nowait
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses, ReadyResponse
from muro.wire.output import EngineCoreOutputs
from muro.wire.request import EngineCoreRequest
from tests.support.coordinating import Ear, FrontEnd
from tests.support.rawpeer import PATIENCE, RawClient


class RanksClient(RawClient):
    """Speaks to the engine of `rank`; hears all."""

    rank = 0

    def __init__(self, index: int, directory: str) -> None:
        super().__init__(index, directory)
        self.completed: list[int] = []
        """Waves that ended, as far as a front-end is told."""

    def send(self, *frames: Frame) -> None:
        assert send_nowait(self.input, [identity_of(self.rank), *frames]), f"engine {self.rank} is not connected"

    def add_to(self, rank: int, request: EngineCoreRequest) -> None:
        self.rank = rank
        self.add(request)

    def _read(self, message: EngineCoreOutputs) -> None:
        if message.wave_complete is not None:
            self.completed.append(message.wave_complete)
        super()._read(message)


class RawRanks:
    """A front-end, its engines, and what they know of each other."""

    def __init__(self, directory: EndpointDirectory) -> None:
        self.directory = directory
        self.handshake = bind_router(ipc_endpoint(directory, "handshake"))
        self.client = RanksClient(0, directory.path)
        self.keeper: CoordinatorKeeper | None = None
        self.children: dict[EngineRank, Child] = {}
        self.responses: dict[EngineRank, ReadyResponse] = {}
        self._ears: list[Ear] = []

    def start(self, size: int, settings: dict[str, Any], *, coordinated: bool, lockstep: bool) -> None:
        addresses = Addresses([bound_address(self.client.input)], [bound_address(self.client.output)])
        if coordinated:
            config = coordinator_config(size, self.directory, lockstep=lockstep)
            self.keeper = CoordinatorKeeper(config)
            self.keeper.start()
            addresses.coordinator_input = config.input_address
            addresses.coordinator_output = config.output_address
            addresses.frontend_stats_publish_address = config.stats_address
        engine = EngineConfig(**settings)
        plan = plan_launch(
            ConnectConfig(engine=engine, num_engines=size, startup_timeout=PATIENCE),
            addresses,
            bound_address(self.handshake),
        )
        started = start(plan, self.handshake, self.client.input)
        self.children, self.responses = dict(started.children), dict(started.responses)

    @property
    def coordinator(self) -> CoordinatorConfig:
        assert self.keeper is not None
        return self.keeper.config

    def front_end(self) -> FrontEnd:
        """An ear for the coordinator's news."""
        ear = FrontEnd(self.coordinator)
        self._ears.append(ear)
        return ear

    def stop(self) -> list[int | None]:
        """End all engines; gives their exit statuses."""
        children, self.children = list(self.children.values()), {}
        return stop(children, 10)

    def close(self) -> None:
        self.stop()
        if self.keeper is not None:
            self.keeper.stop(5)
        for ear in self._ears:
            ear.close()
        self.client.close()
        close(self.handshake, 0)


@contextlib.contextmanager
def raw_ranks(
    size: int,
    *,
    coordinated: bool = False,
    lockstep: bool = False,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[RawRanks]:
    """Simulated engines; `lockstep` ones vote at a socket of their own."""
    with EndpointDirectory() as directory:
        ranks = RawRanks(directory)
        more = dict(settings or {})
        if lockstep:
            group = {"size": size, "address": ipc_endpoint(directory, "votes"), **more.pop("group", {})}
            more["lockstep"] = LockstepConfig(**group)
            options["lockstep"] = True
        try:
            ranks.start(size, {"engine": "sim", "options": options, **more}, coordinated=coordinated, lockstep=lockstep)
            yield ranks
        finally:
            ranks.close()
