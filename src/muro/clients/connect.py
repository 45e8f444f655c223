"""The one factory: settings in, a client out, once every engine is ready.

Binds all sockets first, lends two of them to `launch.startup`, and gives everything back if anything fails or the
caller gives up: there is no half-ready client.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from muro.clients.aio import AsyncMPClient
from muro.clients.closing import in_thread
from muro.clients.doors import Doors, Shared
from muro.clients.engine import KnownEngine
from muro.clients.link import Link
from muro.clients.polling import Polling
from muro.clients.replacing import Replacer
from muro.clients.session import Session
from muro.clients.sync import SyncMPClient
from muro.clients.traffic import Traffic
from muro.config import ConnectConfig, EngineConfig
from muro.errors import ConfigError
from muro.ids import ClientIndex
from muro.launch.interpreter import engine_name
from muro.launch.plan import plan_launch
from muro.launch.remotes import Entrance, Remotes
from muro.launch.shutdown import stop
from muro.launch.startup import Started, StartupProgress, start
from muro.launch.supervisor import Supervisor
from muro.launch.watching import Watching
from muro.transport.wakeup import Wakeup
from muro.wire.handshake import HEARTBEAT, Features
from muro.wire.releases import NEWEST, Layout, layout_of_engine

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
            `connect(engine="echo", num_engines=2)`. `engine` may also be an importable factory.
        on_progress: called in this thread with the progress of the start.

    Raises:
        ConfigError: a setting is wrong; nothing was started.
        StartupError: an engine did not come up; everything that had been started is gone.
    """
    config = make_config(config, settings)
    doors = Doors.open(config)
    with contextlib.ExitStack() as undo:
        undo.callback(doors.close)
        started = _start(config, doors, on_progress, None)
        undo.callback(stop, started.children.values(), 0.0, force=True)
        link = _link(config, doors, started)
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
    config = make_config(config, settings)
    doors = Doors.open(config, shared)
    started: list[Started] = []
    with contextlib.ExitStack() as undo, Wakeup() as cancel:
        undo.callback(doors.close)
        undo.callback(lambda: [stop(s.children.values(), 0.0, force=True) for s in started])
        await in_thread(lambda: started.append(_start(config, doors, on_progress, cancel)), cancel.set)
        link = _link(config, doors, started[0])
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
    try:
        return msgspec.convert(rest | {"engine": engine}, ConnectConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a setting is wrong: {error}") from error


def _start(config: ConnectConfig, doors: Doors, on_progress: OnProgress | None, cancel: Wakeup | None) -> Started:
    plan = plan_launch(config, doors.addresses, doors.handshake_address, _features(), doors.engine_keys)
    return start(
        plan,
        doors.handshake,
        doors.inputs,
        greeters=doors.greeters,
        arrivals=doors.arrivals,
        on_progress=on_progress,
        cancel=cancel,
    )


def _link(config: ConnectConfig, doors: Doors, started: Started) -> Link:
    replacer = Replacer(config, doors)
    traffic = Traffic()
    watch = Watching(config.stall_limit, traffic.sent)
    supervisor = Supervisor(started.children, policy=config.restart, replace=replacer, watch=watch)
    remotes = _remotes(config, doors, started, supervisor)
    doors.settle(watched=remotes is not None, successors=remotes is not None and remotes.awaits_successors)
    return Link(doors, supervisor, replacer, traffic, _layout(started), config.close_timeout, remotes)


def _remotes(config: ConnectConfig, doors: Doors, started: Started, supervisor: Supervisor) -> Remotes | None:
    """Who watches the engines that were started elsewhere, if there are any."""
    ranks = started.responses.keys() - started.children.keys()
    if not ranks or doors.arrivals is None or doors.greeters is None:
        return None
    entrance = None
    if config.restart.policy != "never":
        outputs = doors.addresses.outputs
        entrance = Entrance(doors.handshake, doors.greeters, doors.wall.successors_door, outputs, _features())
    return Remotes(ranks, doors.arrivals, supervisor.publish, entrance)


def _features() -> Features:
    from importlib.metadata import version  # 30 ms, which only who starts engines shall pay

    return Features(version("muro"), [HEARTBEAT])


def _session(started: Started, config: ConnectConfig, client: ClientIndex = _FIRST) -> Session:
    engines = {}
    for rank, ready in started.responses.items():
        engines[rank] = KnownEngine(rank)
        engines[rank].joined(ready)
    # Random beginnings: answers meant for an earlier client of engines that live on are nobody's.
    return Session(
        engines,
        nonce=secrets.token_hex(4),
        client_index=client,
        first_call=secrets.randbits(40) + 1,
        largest=config.engine.limits.max_message_bytes,
    )


def _layout(started: Started) -> Layout:
    """In which layout the engines write: ours the newest, others that of their release (all run the same one)."""
    foreign = [ready.vllm_version for ready in started.responses.values() if ready.muro is None]
    return layout_of_engine(foreign[0]) if foreign else NEWEST
