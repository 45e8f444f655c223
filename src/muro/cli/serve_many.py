"""`muro serve --api-server-count N`: several server processes in front of the same engines, on one port.

This process binds the ports, starts engines and servers, and stays as their parent; it serves nobody itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from muro.child.stop_requests import StopRequests
from muro.cli.progress import StartupShow
from muro.cli.stopping import stopping
from muro.config import ConnectConfig, RestartPolicy
from muro.crew.lead import CrewConfig, lead
from muro.crew.words import Membership, Serving
from muro.errors import ConfigError
from muro.launch.spawn import Child, spawn
from muro.llm.words import ModelChoice
from muro.server.gate import read_api_keys
from muro.server.lifespan import ServerConfig, bind, url_of
from muro.server.listening import tls_context
from muro.server.process import HEALTH_LISTENER, LISTENER, TARGET, ServerSettings
from muro.wire.failure import ExitCode

Announce = Callable[[str, str, bool], None]
"""Given the address, the model's name and whether it can chat."""


def serve_many(
    count: int,
    choice: ModelChoice,
    connect: ConnectConfig,
    http: ServerConfig,
    restart: RestartPolicy,
    log_level: str,
    announce: Announce,
) -> ExitCode:
    """Serve with `count` processes until somebody asks to stop. Raises ConfigError, StartupError."""
    if connect.host is not None:
        raise ConfigError("--api-server-count works with engines that are all started here")
    connect = msgspec.structs.replace(
        connect, engine=choice.engine_config(connect.engine), restart=http.deaths.restarts(connect.restart)
    )
    config = CrewConfig(
        servers=count,
        restart=msgspec.structs.replace(restart, policy="always"),
        shutdown_timeout=http.shutdown_timeout,
        death_notice=http.death_notice,
    )
    secure = tls_context(http.tls_certfile, http.tls_keyfile) is not None  # what is wrong is told before all else
    if http.api_key_file is not None:
        read_api_keys(http.api_key_file)
    with contextlib.ExitStack() as bound:
        listeners = {LISTENER: bound.enter_context(bind(http.host, http.port))}
        if http.health_port is not None:
            listeners[HEALTH_LISTENER] = bound.enter_context(bind(http.host, http.health_port, "--health-port"))

        def start(membership: Membership) -> Child:
            settings = ServerSettings(
                membership=membership, choice=choice, connect=connect, http=http, log_level=log_level
            )
            index = membership.index
            title = ["--server", str(index), "--generation", str(membership.generation)]
            lent = {name: listener.fileno() for name, listener in listeners.items()}
            return spawn(TARGET, settings.payload(), title=title, name=f"server {index}", lent=lent)

        with StartupShow() as show:

            def on_serving(serving: Serving) -> None:
                show.close()
                announce(url_of(listeners[LISTENER], secure=secure), serving.names[0], serving.chat)

            async def run() -> ExitCode:
                stops = StopRequests()
                stopping.tell(stops.ask_soon)
                return await lead(
                    config, connect, start, stops, on_progress=show, on_serving=on_serving, on_stop=bound.close
                )

            return asyncio.run(run())
