"""The one factory: settings in, a client out, once every engine is ready.

Binds all sockets first, lends two of them to `launch.startup`, and gives everything back if anything fails or the
caller gives up: there is no half-ready client.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from muro.clients.aio import AsyncMPClient
from muro.clients.closing import in_thread
from muro.clients.coordination import Coordination
from muro.clients.doors import Doors, Shared
from muro.clients.engine import FIRST, KnownEngine
from muro.clients.link import Link
from muro.clients.polling import Polling
from muro.clients.replacing import Replacer
from muro.clients.session import Session
from muro.clients.sync import SyncMPClient
from muro.clients.traffic import Traffic
from muro.config import ConnectConfig, EngineConfig
from muro.errors import ConfigError
from muro.ids import ClientIndex, EngineRank
from muro.launch.data_parallel import DataParallel
from muro.launch.handle import Spawner
from muro.launch.here import SpawnHere
from muro.launch.interpreter import engine_name
from muro.launch.plan import plan_launch
from muro.launch.remotes import Entrance, Remotes
from muro.launch.shutdown import stop
from muro.launch.startup import Started, StartupProgress, start
from muro.launch.supervisor import Supervisor
from muro.launch.watching import Watching
from muro.parallel.balance import Balancer
from muro.parallel.prefix import PrefixIndex
from muro.transport.sockets import Socket
from muro.transport.wakeup import Wakeup
from muro.version import VERSION
from muro.wire.handshake import HEARTBEAT, Addresses, Features, ReadyResponse
from muro.wire.releases import NEWEST, Layout, layout_of_engine

_MAX_BLOCKS = 1 << 18
"""Blocks of prompts that are remembered per engine, however large its cache."""

OnProgress = Callable[[StartupProgress], None]

_FIRST = ClientIndex(0)
_OURS = frozenset({"rank", "generation", "handshake_address", "local", "headless", "curve", "insecure_tcp", "rejoin"})
_CONNECT = frozenset(ConnectConfig.__struct_fields__) - {"engine"}
_ENGINE = frozenset(EngineConfig.__struct_fields__) - _OURS


def connect(
    config: ConnectConfig | None = None, *, on_progress: OnProgress | None = None, **settings: Any
) -> SyncMPClient:
    """Start engines, or wait for them, and return a client for threads when all are ready.

    Args:
        config: all settings; or give single ones, named as in `ConnectConfig` and `EngineConfig`, for instance
            `connect(engine="echo", num_engines=2)`. `engine` may also be an importable factory, and `restart` the
            policy alone: "never", "on-failure" or "always".
        on_progress: called in this thread with the progress of the start.

    Raises:
        ConfigError: a setting is wrong; nothing was started.
        StartupError: an engine did not come up; everything that had been started is gone.
    """
    config = make_config(config, settings)
    with contextlib.ExitStack() as undo:
        spawner, config = _spawner(config)
        undo.callback(spawner.close)
        doors = Doors.open(config)
        undo.callback(doors.close)
        parallel = DataParallel(config)
        undo.callback(parallel.close, 0.0)
        started = _start(config, doors, parallel, spawner, on_progress, None)
        undo.callback(stop, started.children.values(), 0.0, force=True)
        link = _link(config, doors, parallel, spawner, started, undo)
        polling = Polling(link)
        undo.callback(polling.close)
        undo.callback(link.stop, 0.0)
        link.open(polling.open().interrupt)
        session = _session(started, config)
        link.listen_for(session, config.stall_limit)
        client = SyncMPClient(session, link, polling)
        undo.pop_all()
    return client


async def connect_async(
    config: ConnectConfig | None = None,
    *,
    on_progress: OnProgress | None = None,
    shared: Shared | None = None,
    **settings: Any,
) -> AsyncMPClient:
    """As `connect`, for the running asyncio loop. Cancelling it takes down what was started.

    `on_progress` is called in another thread. `shared` says with which other client processes the engines are shared;
    see `crew`.
    """
    given = make_config(config, settings)
    started: list[Started] = []
    found: list[tuple[Spawner, ConnectConfig]] = []
    with contextlib.ExitStack() as undo, Wakeup() as cancel:
        undo.callback(_close_found, found)
        await in_thread(lambda: found.append(_spawner(given)))
        spawner, config = found[0]
        doors = Doors.open(config, shared)
        undo.callback(doors.close)
        parallel = DataParallel(config, 1 if shared is None else shared.clients)
        undo.callback(parallel.close, 0.0)
        undo.callback(lambda: [stop(s.children.values(), 0.0, force=True) for s in started])
        await in_thread(
            lambda: started.append(_start(config, doors, parallel, spawner, on_progress, cancel)), cancel.set
        )
        link = _link(config, doors, parallel, spawner, started[0], undo)
        undo.callback(link.stop, 0.0)
        session = _session(started[0], config, doors.client)
        link.listen_for(session, config.stall_limit)
        client = AsyncMPClient(session, link).start()
        undo.pop_all()
    return client


def make_config(config: ConnectConfig | None, settings: dict[str, Any]) -> ConnectConfig:
    """Settings from either a struct or single values. Raises ConfigError that names the wrong one."""
    if config is not None:
        if not isinstance(config, ConnectConfig):
            raise ConfigError(f"got {config!r}; give a ConnectConfig, or settings by name, as in engine='echo'")
        if settings:
            raise ConfigError(f"give either a ConnectConfig or single settings ({', '.join(settings)}), not both")
        return config
    if unknown := settings.keys() - _CONNECT - _ENGINE:
        raise ConfigError(
            f"there is no setting {', '.join(sorted(unknown))}; settings are {', '.join(sorted(_CONNECT | _ENGINE))}"
        )
    engine = {name: value for name, value in settings.items() if name in _ENGINE}
    if "engine" in engine:
        engine["engine"] = engine_name(engine["engine"])
    rest = {name: value for name, value in settings.items() if name in _CONNECT}
    if isinstance(policy := rest.get("restart"), str):
        rest["restart"] = {"policy": policy}
    try:
        return msgspec.convert(rest | {"engine": engine}, ConnectConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a setting is wrong: {error}") from error


def _spawner(config: ConnectConfig) -> tuple[Spawner, ConnectConfig]:
    """Who starts engines, and the settings completed by what it knows: at which address they can dial us.

    Raises MissingExtraError, StartupError, ConfigError.
    """
    if config.ray is None:
        return SpawnHere(), config
    from muro.cluster.ray_cluster import RayCluster

    cluster = RayCluster(config.ray).open()
    return cluster, msgspec.structs.replace(config, host=config.host or cluster.address)


def _close_found(found: list[tuple[Spawner, ConnectConfig]]) -> None:
    for spawner, _ in found:
        spawner.close()


def _start(
    config: ConnectConfig,
    doors: Doors,
    parallel: DataParallel,
    spawner: Spawner,
    on_progress: OnProgress | None,
    cancel: Wakeup | None,
) -> Started:
    parallel.open()
    addresses, group = parallel.addresses(doors.addresses), parallel.group(FIRST)
    plan = plan_launch(config, addresses, doors.handshake_address, _features(), doors.engine_keys, group)
    return start(
        plan,
        doors.handshake,
        doors.inputs,
        spawner=spawner,
        greeters=doors.greeters,
        arrivals=doors.arrivals,
        on_progress=on_progress,
        cancel=cancel,
    )


def _link(
    config: ConnectConfig,
    doors: Doors,
    parallel: DataParallel,
    spawner: Spawner,
    started: Started,
    undo: contextlib.ExitStack,
) -> Link:
    _check_lockstep(config, started)
    replacer = Replacer(config, doors, parallel, spawner)
    traffic = Traffic()
    supervisor = Supervisor(
        started.children,
        policy=config.restarts,
        replace=replacer,
        watch=Watching(config.stall_limit, traffic.sent),
        lockstep=config.lockstep,
    )
    remotes = _remotes(config, doors, parallel, started, supervisor)
    doors.settle(watched=remotes is not None, successors=remotes is not None and remotes.awaits_successors)
    coordination = None
    if parallel.stats_address is not None:
        coordination = Coordination(parallel.stats_address, lockstep=config.lockstep)
        undo.callback(coordination.close)
        coordination.open()
    timeout, layout = config.close_timeout, layout_of(started.responses.values())
    link = Link(doors, supervisor, replacer, traffic, layout, timeout, remotes, parallel, coordination)
    link.fixed = _why_fixed(config, parallel)
    return link


def _why_fixed(config: ConnectConfig, parallel: DataParallel) -> str:
    """Why the number of engines cannot change while they serve; empty: it can."""
    if config.lockstep:
        return "lockstep engines compute every step together, and were told at their start how many they are"
    if config.other_front_ends or config.start_rank or parallel.stats_address is not None:
        return "other front-ends have engines of the same group, and are not told"
    return ""


def _check_lockstep(config: ConnectConfig, started: Started) -> None:
    """Raises ConfigError if engines of a lockstep group are none."""
    for rank, ready in started.responses.items() if config.lockstep else ():
        if ready.data_parallel_size != config.num_engines:
            raise ConfigError(
                f"engine {rank} ({config.engine.engine}) does not run in lockstep with the others, and the setting "
                "lockstep (muro serve: --data-parallel-lockstep) says so; leave it out for independent engines"
            )


def _remotes(
    config: ConnectConfig, doors: Doors, parallel: DataParallel, started: Started, supervisor: Supervisor
) -> Remotes | None:
    """Who watches the engines that were started elsewhere, if there are any."""
    ranks = started.responses.keys() - started.children.keys()
    if not ranks or doors.arrivals is None or doors.greeters is None:
        return None
    entrance = None
    if config.restarts.policy != "never":

        def addresses(inputs: Socket) -> Addresses:
            return parallel.addresses(doors.addresses_with(inputs))

        entrance = Entrance(doors.handshake, doors.greeters, doors.wall.successors_door, addresses, _features())
    return Remotes(ranks, doors.arrivals, supervisor.publish, entrance, alone=config.num_engines == 1)


def _features() -> Features:
    return Features(VERSION, [HEARTBEAT])


def _session(started: Started, config: ConnectConfig, client: ClientIndex = _FIRST) -> Session:
    engines = {}
    for rank, ready in started.responses.items():
        engines[rank] = KnownEngine(rank)
        engines[rank].joined(ready)
    return session_over(engines, balancer_for(started.responses.values(), started.responses, config), config, client)


def session_over(
    engines: Mapping[EngineRank, KnownEngine], balancer: Balancer, config: ConnectConfig, client: ClientIndex
) -> Session:
    """The session of a client whose engines may have had another one before, or have others now."""
    # Random beginnings: answers meant for an earlier client of engines that live on are nobody's.
    return Session(
        engines,
        nonce=secrets.token_hex(4),
        balancer=balancer,
        client_index=client,
        first_call=secrets.randbits(40) + 1,
        largest=config.engine.limits.max_message_bytes,
    )


def balancer_for(
    engines: Iterable[ReadyResponse],
    ranks: Iterable[EngineRank],
    config: ConnectConfig,
    *,
    clients: int = 1,
    index: int = 0,
) -> Balancer:
    """Who chooses. Prompts are cut as the engines do it, and no more of them remembered than their caches hold.

    Args:
        engines: what they say of themselves.
        ranks: those that take requests.
        config: settings of the client.
        clients: front-ends that send to these engines.
        index: which of them this is.
    """
    prefix = None
    if config.data_parallel_balance == "prefix":
        said = list(engines)
        blocks = min((ready.num_gpu_blocks or _MAX_BLOCKS for ready in said), default=_MAX_BLOCKS)
        size = min((ready.block_size for ready in said), default=1)
        prefix = PrefixIndex(max(1, size), max(1, min(blocks, _MAX_BLOCKS)))
    return Balancer(ranks, clients=clients, client_index=index, prefix=prefix)


def layout_of(engines: Iterable[ReadyResponse]) -> Layout:
    """In which layout the engines write: ours the newest, others that of their release (all run the same one)."""
    foreign = [ready.vllm_version for ready in engines if ready.muro is None]
    return layout_of_engine(foreign[0]) if foreign else NEWEST
