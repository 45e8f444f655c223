"""From settings to what must be started and who must join. Pure: starts nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from muro.config import ConnectConfig, CurveKeys, EngineConfig, LockstepConfig, engine_environment, ray_environment
from muro.errors import ConfigError
from muro.ids import EngineRank, Generation
from muro.transport.endpoint import parse_address
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
    group: LockstepConfig | None = None,
) -> LaunchPlan:
    """Who is started and who is expected.

    Args:
        config: `num_local_engines` ranks, from `start_rank` on, we start (here, or by Ray), the others dial in.
        addresses: the bound addresses of all front-ends' input and output sockets.
        handshake_address: where the handshake socket listens.
        features: what this front-end offers beyond the common protocol.
        keys: with which the engines that are spawned here dial.
        group: what lockstep engines must know of each other; None: what the settings say.
    """
    num_local, first = config.num_local, config.start_rank
    local = {
        EngineRank(rank): _local(config, EngineRank(rank), handshake_address, keys, group)
        for rank in range(first, first + num_local)
    }
    expected = {
        EngineRank(rank): _ours(config) if rank in local else Expected(local=False)
        for rank in range(first, first + config.num_engines)
    }
    return LaunchPlan(
        init=Init(addresses, parallel_config(group), features),
        handshake_address=handshake_address,
        local=local,
        expected=expected,
        startup_timeout=config.startup_timeout,
        env=_environment(config, num_local),
    )


def plan_replacement(
    config: ConnectConfig,
    ranks: Iterable[EngineRank],
    generation: Generation,
    addresses: Addresses,
    handshake_address: str,
    features: Features | None = None,
    keys: CurveKeys | None = None,
    group: LockstepConfig | None = None,
) -> LaunchPlan:
    """As `plan_launch`, for successors of engines that were started here, or for one of a new rank."""
    plan = plan_launch(config, addresses, handshake_address, features, keys, group)
    local = {
        rank: msgspec.structs.replace(_local(config, rank, handshake_address, keys, group), generation=generation)
        for rank in ranks
    }
    expected = dict.fromkeys(local, _ours(config))
    env = _environment(config, max(config.num_local, max(local) - config.start_rank + 1))
    return msgspec.structs.replace(plan, local=local, expected=expected, env=env)


def _ours(config: ConnectConfig) -> Expected:
    """What engines that we start say of themselves."""
    return Expected(local=config.ray is None, headless=False)


def _environment(config: ConnectConfig, num_local: int) -> dict[str, str]:
    return engine_environment(config.env, num_local) if config.ray is None else ray_environment(config.env, config.ray)


def _local(
    config: ConnectConfig,
    rank: EngineRank,
    handshake_address: str,
    keys: CurveKeys | None,
    group: LockstepConfig | None,
) -> EngineConfig:
    return msgspec.structs.replace(
        config.engine,
        rank=rank,
        handshake_address=handshake_address,
        local=config.ray is None,
        headless=False,
        curve=keys,
        insecure_tcp=config.insecure_tcp,
        lockstep=group or config.engine.lockstep,
    )


def parallel_config(group: LockstepConfig | None) -> dict[str, Any]:
    """What INIT says of a group of lockstep engines, in vLLM's words: how many they are, and where rank 0 is.

    On one machine the place is a file, which vLLM has no word for; engines that are started here know it anyway.
    """
    if group is None or group.size == 1:
        return {}
    endpoint = parse_address(group.address)
    if endpoint.is_ipc:
        return {"data_parallel_size": group.size}
    return {
        "data_parallel_master_ip": endpoint.host,
        "data_parallel_master_port": endpoint.port,
        "_data_parallel_master_port_list": [endpoint.port],
        "data_parallel_size": group.size,
    }
