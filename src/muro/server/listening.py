"""HTTP on a bound socket: uvicorn with our bounds, and TLS. Signals are the business of `lifespan`, not of uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn

from muro.errors import ConfigError
from muro.server.app import App
from muro.server.connection import Connections, bound_buffers

LAST_WORDS = 2.0
"""Seconds that answers which were just ended get to reach their callers."""
_BACKLOG = 4096


def tls_context(certfile: str | None, keyfile: str | None) -> ssl.SSLContext | None:
    """How to speak TLS; None without a certificate. Raises ConfigError."""
    if certfile is None:
        if keyfile is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key with a password would ask for it at the terminal: that is refused instead.
        context.load_cert_chain(certfile, keyfile, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        files = certfile if keyfile is None else f"{certfile} and {keyfile}"
        raise ConfigError(
            f"the certificate and key in {files} cannot be used; both must be PEM files, and the key without a "
            f"password: {error}"
        ) from error
    return context


@asynccontextmanager
async def listening(
    app: App, connections: Connections, listener: socket.socket, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Answer HTTP meanwhile. Raises ConfigError if somebody else listens there by now."""
    limits = connections.limits
    bound_buffers(listener, limits.slow_reader_timeout)
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise ConfigError(f"cannot serve on {host} port {port}: {error.strerror}; another port: --port") from error
    config = uvicorn.Config(
        app,
        http=cast(Any, connections.protocol),
        ws="none",
        proxy_headers=False,
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=cast(int, limits.keep_alive_timeout),
        timeout_graceful_shutdown=int(LAST_WORDS),
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    ticking = asyncio.ensure_future(server.main_loop())
    try:
        yield
    finally:
        server.should_exit = True
        await ticking
        await server.shutdown(sockets=[listener])
