"""The life of a server: bind, start the engine, serve, drain, stop. One event loop, in the thread that calls.

Rules:

- The port is bound before the engine starts, so that a taken one is told at once; it listens when the engine serves.
- The first SIGTERM or SIGINT asks for an orderly stop: new requests get 503, those under way have `shutdown_timeout`
  seconds (0: none) before they end with "abort". The second one ends that patience. Further ones change nothing
  here: what is left to do is bounded. (The command line takes the fifth for force.)
- While a dead engine is started again the server stays up: new requests wait for it (`DeathPolicy.restart_wait`), or
  get 503 with Retry-After. When it is not started again, everything is answered with 503 for a moment, so that
  callers learn why; then the server ends with ExitCode.ENGINE_FAILED, or CRASH_LOOP if the restart budget is
  exhausted, also if somebody asked it to stop meanwhile.
- Signals are taken over in the main thread only; elsewhere `stop` does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from muro.child.stop_requests import StopRequests
from muro.clients.connect import OnProgress, connect_async
from muro.config import ConnectConfig
from muro.crew.ending import ASKED, exit_code
from muro.crew.member import Member
from muro.errors import ConfigError, MuroError, StartupError
from muro.llm.aio import AsyncLLM, Join
from muro.llm.replay import DeathPolicy
from muro.llm.words import ModelChoice
from muro.server.app import make_app
from muro.server.gate import ApiKeys, read_api_keys
from muro.server.grammars import GrammarCheck
from muro.server.health import health
from muro.server.health_port import HealthPort
from muro.server.limits import HttpLimits
from muro.server.listening import LAST_WORDS, listening, tls_context
from muro.server.own_metrics import numbers_of
from muro.server.renewal import Source, key_source, renewing, tls_source
from muro.server.service import Service
from muro.wire.failure import ExitCode

log = logging.getLogger(__name__)

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\sA-Z]+")
"""As browsers write theirs, which is compared as it stands."""
_SIGNAL_GRACE = 0.5
"""Seconds by which a signal to us may be later than the same one to the engine."""
_LOOK_EVERY = 0.2
"""Seconds between looks at the engine's state; it is memory, and looking costs a microsecond."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side. Times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    health_port: int | None = None
    """Where health is answered besides, however busy `port` is; None: nowhere."""
    served_names: tuple[str, ...] = ()
    """What callers call the model; empty: as `ModelChoice.names`."""
    limits: HttpLimits = HttpLimits()
    api_key_file: str | None = None
    """Whose keys let callers in; None: everybody may come."""
    tls_certfile: str | None = None
    tls_keyfile: str | None = None
    allowed_origins: tuple[str, ...] = ()
    """Whose web pages may use the server (CORS)."""
    dev_mode: bool = False
    """Whether callers may control the engines."""
    shutdown_timeout: float = 0.0
    deaths: DeathPolicy = DeathPolicy()
    """What becomes of requests when an engine dies that will be replaced."""
    grammar_check: str | None = None
    """What compiles grammars before engines of another make get them, as "module:function"; None: nothing does."""
    death_notice: float = 2.0
    """How long a server whose engine has died, and is not started again, goes on telling so."""

    def __post_init__(self) -> None:
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin!r} is no origin, so no web page would match it; https://example.org or "
                    "http://localhost:3000 is one: in lower case, without a path or a slash at its end"
                )


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A bound TCP socket that does not listen yet. Raises ConfigError, which names the flag for another port.

    It has the port for itself: with SO_REUSEADDR another process could bind it as well for as long as neither listens,
    and would find out only after its model has been loaded. So that comes later (`bound_buffers`), unless what stands
    in the way may be the old connections of a server that has ended.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve on host {host!r}, port {port}: {error}") from error
    try:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        listener.close()
        remedy = "another address: --host" if error.errno == errno.EADDRNOTAVAIL else f"another port: {flag}"
        raise ConfigError(f"cannot serve on {host} port {port}: {error.strerror}; {remedy}") from error
    return listener


def url_of(listener: socket.socket, *, secure: bool = False) -> str:
    """Where a bound socket can be reached."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - read, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def serve(
    listener: socket.socket,
    choice: ModelChoice,
    connect: ConnectConfig,
    config: ServerConfig,
    *,
    on_progress: OnProgress | None = None,
    on_serving: Callable[[str, Service], None] = lambda url, service: None,
    stops: StopRequests | None = None,
    take_signals: Callable[[Callable[[], None]], None] | None = None,
    health_listener: socket.socket | None = None,
    member: Member | None = None,
) -> ExitCode:
    """Serve a model until somebody asks to stop, or its engine dies.

    Args:
        listener: of `bind`; closed in the end.
        choice: the model.
        connect: where its engines are.
        config: the HTTP side.
        on_progress: told how the engine's start goes; called in another thread.
        on_serving: called with the address once requests are served.
        stops: to ask for a stop from inside the loop.
        take_signals: given what is to be called for each stop signal, by somebody who handles them already.
        health_listener: of `bind`, for the health port; None: it is bound here, if there is one. Closed in the end.
        member: if several servers have the same engines; then those are not started here.

    Raises:
        ConfigError: a setting is wrong.
        StartupError: the engine did not come up.
    """
    stops = stops or StopRequests()
    if take_signals is None:
        stops.take_signals()
    else:
        take_signals(stops.ask_soon)
    with listener, _health_port(config, health_listener) as door:
        keys, tls, sources = _trust(config)
        join = connect_async if member is None else member.join
        llm = await _start(stops, choice, connect, config.deaths, on_progress, join)
        if llm is None:
            return ExitCode.STOPPED
        grammars = GrammarCheck(config.grammar_check)
        try:
            service = _service(llm, config.served_names or choice.names(), config, member, grammars)
            app = make_app(service, keys, config.allowed_origins, dev_mode=config.dev_mode)
            async with listening(app, service.connections, listener, tls), renewing(sources):
                # What start-up has left is here to stay: no collection need look at it again.
                gc.collect()
                gc.freeze()
                _tell_of(service, door, member)
                on_serving(url_of(listener, secure=tls is not None), service)
                await _until_over(service, stops, config, told=connect.restart.policy != "never")
            return exit_code(llm, asked=stops.count > 0)
        finally:
            gc.unfreeze()
            grammars.close()
            await llm.aclose()


def _trust(config: ServerConfig) -> tuple[ApiKeys, ssl.SSLContext | None, list[Source]]:
    """Who is let in and how, and what of that may be replaced meanwhile. Raises ConfigError."""
    keys, sources = ApiKeys(), []
    if config.api_key_file is not None:
        keys = read_api_keys(config.api_key_file)
        sources.append(key_source(config.api_key_file, keys))
    tls = tls_context(config.tls_certfile, config.tls_keyfile)
    if tls is not None and config.tls_certfile is not None:
        sources.append(tls_source(config.tls_certfile, config.tls_keyfile, tls))
    return keys, tls, sources


def _service(
    llm: AsyncLLM, names: Sequence[str], config: ServerConfig, member: Member | None, grammars: GrammarCheck
) -> Service:
    waits = config.deaths.restart_wait > 0
    return Service(llm, names, config.limits, waits=waits, crew=member, grammars=grammars)


def _tell_of(service: Service, door: HealthPort | None, member: Member | None) -> None:
    """Let others than callers know how things are."""
    if door is not None:
        door.keep(lambda: health(service, time.monotonic_ns()))
    if member is not None:
        chat = service.llm.words.template is not None
        member.serves(service.names, chat=chat, count=lambda: numbers_of(service))


@contextlib.contextmanager
def _health_port(config: ServerConfig, listener: socket.socket | None) -> Iterator[HealthPort | None]:
    """The second door of those who watch us, if they have one. Raises ConfigError."""
    if config.health_port is None:
        yield None
        return
    door = HealthPort(listener or bind(config.host, config.health_port, "--health-port")).open()
    log.info("health is answered on %s, too", door.url)
    try:
        yield door
    finally:
        door.close()


async def _start(
    stops: StopRequests,
    choice: ModelChoice,
    connect: ConnectConfig,
    deaths: DeathPolicy,
    on_progress: OnProgress | None,
    join: Join,
) -> AsyncLLM | None:
    """The model, or None if a stop was asked for before it was ready."""
    fields = {name: getattr(choice, name) for name in choice.__struct_fields__}
    fields |= msgspec.structs.asdict(deaths)
    starting = asyncio.ensure_future(AsyncLLM.start(on_progress=on_progress, connect=connect, join=join, **fields))
    stopping = asyncio.ensure_future(stops.asked())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return None if await _stopped_with_all(starting, stopping) else starting.result()
        starting.cancel()
        await asyncio.wait({starting})
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().aclose()
        return None
    finally:
        stopping.cancel()


async def _stopped_with_all(starting: asyncio.Future[AsyncLLM], stopping: asyncio.Future[None]) -> bool:
    """Whether a start has failed because somebody asked the whole tree to stop at once, and the engine was faster."""
    error = starting.exception()
    if not isinstance(error, StartupError) or error.exit_status not in ASKED:
        return False
    await asyncio.wait({stopping}, timeout=_SIGNAL_GRACE)
    return stopping.done()


async def _until_over(service: Service, stops: StopRequests, config: ServerConfig, *, told: bool) -> None:
    """Return when it is time to end; `told`: whether deaths are logged where they are noticed."""
    stopping = asyncio.ensure_future(stops.asked())
    try:
        while not stopping.done():
            if exit_code(service.llm) is not ExitCode.STOPPED:
                log.error("%s", _why_over(service, told=told))
                await asyncio.wait({stopping}, timeout=config.death_notice)
                return
            await asyncio.wait({stopping}, timeout=_LOOK_EVERY)
    finally:
        stopping.cancel()
    service.close_door()
    await _drain(service, stops, config.shutdown_timeout)


def _why_over(service: Service, *, told: bool) -> str:
    """What is said when no engine is left."""
    if told:
        return "no engine is left, and none is started again; the server ends"
    try:
        service.llm.check_health()
    except MuroError as death:
        return f"{death.message}; no engine serves any more" if len(service.llm.engines()) > 1 else death.message
    return "the engine has died"


async def _drain(service: Service, stops: StopRequests, patience: float) -> None:
    """Let requests end by themselves for `patience` seconds or until a second stop is asked for; then end the rest."""
    if patience > 0 and service.busy:
        impatient = asyncio.ensure_future(stops.asked(2))
        idle = asyncio.ensure_future(service.wait_idle())
        await asyncio.wait({impatient, idle}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        idle.cancel()
    if service.busy:
        service.llm.abort_all()
        idle = asyncio.ensure_future(service.wait_idle())
        await asyncio.wait({idle}, timeout=LAST_WORDS)
        idle.cancel()
