"""From settings to what must be started and who must join. Pure: starts nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from muro.config import ConnectConfig, CurveKeys, EngineConfig, engine_environment, ray_environment
from muro.errors import ConfigError
from muro.ids import EngineRank, Generation
from muro.wire.handshake import Addresses, Expected, Features, Init

ENGINE_TARGET = "muro.process.main:run_engine_core"
"""What an engine's process calls."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `launch.startup` needs to know."""

    init: Init
    """The answer to every engine's HELLO."""
    handshake_address: str
    local: dict[EngineRank, EngineConfig]
    """Engines that are started by us: spawned here, or placed elsewhere."""
    expected: dict[EngineRank, Expected]
    """All engines that must join, and what each must say of itself."""
    startup_timeout: float
    """Seconds without any progress after which an engine is given up."""
    env: dict[str, str] = {}
    target: str = ENGINE_TARGET

    def name(self, rank: EngineRank) -> str:
        """An engine in people's words."""
        if rank in self.local:
            return f"engine {rank} ({self.local[rank].engine})"
        return f"engine {rank} (started elsewhere)"

    def title(self, rank: EngineRank) -> list[str]:
        """What the process list shows of a local engine."""
        config = self.local[rank]
        model = ["--model", config.model] if config.model else []
        generation = ["--generation", str(config.generation)] if config.generation else []
        return ["--rank", str(rank), *generation, "--engine", config.engine, *model]

    def payload(self, rank: EngineRank) -> dict[str, Any]:
        """The settings of a local engine as plain JSON values; raises `ConfigError` if some cannot be."""
        try:
            values: dict[str, Any] = msgspec.to_builtins(self.local[rank], str_keys=True)
        except TypeError as error:
            raise ConfigError(f"the options of {self.name(rank)} must be plain JSON values: {error}") from error
        return values


def plan_launch(
    config: ConnectConfig,
    addresses: Addresses,
    handshake_address: str,
    features: Features | None = None,
    keys: CurveKeys | None = None,
) -> LaunchPlan:
    """Who is started and who is expected.

    Args:
        config: the first `num_local_engines` ranks are started by us (here, or all of them by Ray), the others dial in.
        addresses: the bound addresses of all front-ends' input and output sockets.
        handshake_address: where the handshake socket listens.
        features: what this front-end offers beyond the common protocol.
        keys: with which the engines that are spawned here dial.
    """
    num_local = config.num_engines if config.num_local_engines is None else config.num_local_engines
    here = config.ray is None
    local = {
        EngineRank(rank): msgspec.structs.replace(
            config.engine,
            rank=rank,
            handshake_address=handshake_address,
            local=here,
            headless=False,
            curve=keys,
            insecure_tcp=config.insecure_tcp,
        )
        for rank in range(num_local)
    }
    expected = {
        EngineRank(rank): Expected(local=here, headless=False) if rank < num_local else Expected(local=False)
        for rank in range(config.num_engines)
    }
    return LaunchPlan(
        init=Init(addresses, {}, features),
        handshake_address=handshake_address,
        local=local,
        expected=expected,
        startup_timeout=config.startup_timeout,
        env=engine_environment(config.env, num_local)
        if config.ray is None
        else ray_environment(config.env, config.ray),
    )


def plan_replacement(
    config: ConnectConfig,
    rank: EngineRank,
    generation: Generation,
    addresses: Addresses,
    handshake_address: str,
    features: Features | None = None,
    keys: CurveKeys | None = None,
) -> LaunchPlan:
    """As `plan_launch`, for the successor of one engine that was started here."""
    plan = plan_launch(config, addresses, handshake_address, features, keys)
    engine = msgspec.structs.replace(plan.local[rank], generation=generation)
    return msgspec.structs.replace(plan, local={rank: engine}, expected={rank: plan.expected[rank]})
