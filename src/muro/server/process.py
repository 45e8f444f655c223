"""One of several server processes with the same engines: the whole life of it, from its settings to its exit code.

`child.boot` calls `run_server` in a spawned child. The parent has bound the ports and lends them; all servers accept
callers from the same queue, so that nobody is turned away while one of them is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any

import msgspec
import uvloop

from muro.child.context import ChildContext
from muro.child.logs import set_level
from muro.config import ConnectConfig
from muro.crew.member import Member
from muro.crew.words import Membership
from muro.errors import ConfigError, MuroError
from muro.llm.words import ModelChoice
from muro.observe.log import TOLD
from muro.server.lifespan import ServerConfig, serve
from muro.wire.failure import ExitCode, FailureRecord
from muro.wire.progress import SERVING

log = logging.getLogger(__name__)

LISTENER, HEALTH_LISTENER = "listener", "health"
"""Names of the descriptors that are lent."""
TARGET = "muro.server.process:run_server"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What such a process is started with."""

    membership: Membership
    choice: ModelChoice
    connect: ConnectConfig
    """That of the parent; the engines are not started here."""
    http: ServerConfig
    log_level: str = "WARNING"

    def payload(self) -> dict[str, Any]:
        """As plain JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return values


def run_server(context: ChildContext) -> int:
    """Target of a spawned child: serve HTTP; returns the exit code."""
    settings = msgspec.convert(context.payload, ServerSettings)
    set_level(settings.log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, context))
    except MuroError as error:
        log.error("the server failed: %s", error.message, extra=TOLD)
        context.report_failure(FailureRecord.of(context.page.read().phase, error))
        return ExitCode.CONFIG if isinstance(error, ConfigError) else ExitCode.STARTUP_FAILED


async def _serve(settings: ServerSettings, context: ChildContext) -> ExitCode:
    context.page.set_phase("starting")
    member, lent = Member(settings.membership), context.config.lent
    try:
        return await serve(
            _listener(lent, LISTENER),
            settings.choice,
            settings.connect,
            settings.http,
            on_serving=lambda url, service: context.page.set_phase(SERVING),
            health_listener=_listener(lent, HEALTH_LISTENER) if HEALTH_LISTENER in lent else None,
            member=member,
        )
    finally:
        member.close()


def _listener(lent: Mapping[str, int], name: str) -> socket.socket:
    return socket.socket(fileno=lent[name])
