"""listening.py: which certificates are taken, and a port that somebody else has got."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import cast

import pytest

from muro.errors import ConfigError
from muro.server.app import App
from muro.server.connection import Connections
from muro.server.lifespan import bind
from muro.server.limits import HttpLimits
from muro.server.listening import listening, tls_context

TLS = Path(__file__).parents[2] / "data/tls"


def test_a_certificate_and_its_key() -> None:
    assert tls_context(None, None) is None
    assert tls_context(str(TLS / "cert.pem"), str(TLS / "key.pem")) is not None


@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("missing.pem", None, "missing.pem"),
        ("key.pem", None, "cannot be used; both must be PEM files"),
        ("cert.pem", None, "cannot be used; both must be PEM files"),
        ("cert.pem", "locked_key.pem", "cannot be used; both must be PEM files"),
        (None, "key.pem", "needs --ssl-certfile"),
    ],
)
def test_what_cannot_be_used(cert: str | None, key: str | None, words: str) -> None:
    files = [None if name is None else str(TLS / name) for name in (cert, key)]
    with pytest.raises(ConfigError, match=words):
        tls_context(*files)


def test_who_has_bound_a_port_has_it_before_he_listens() -> None:
    with bind("127.0.0.1", 0) as first:
        with pytest.raises(ConfigError, match="in use; another port: --health-port"):
            bind("127.0.0.1", first.getsockname()[1], "--health-port")


def test_old_connections_do_not_keep_a_server_from_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        address = before.getsockname()
        with socket.create_connection(address) as caller:
            accepted, _ = before.accept()
            accepted.close()  # first: so its side remains in the kernel
            assert caller.recv(1) == b""
    bind(*address).close()


def test_a_port_that_somebody_else_has_got_meanwhile() -> None:
    async def serve(listener: socket.socket) -> None:
        async with listening(cast(App, None), Connections(HttpLimits(), 1), listener, None):
            pass

    with socket.socket() as ours, socket.socket() as other:
        for listener in (ours, other):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind(("127.0.0.1", 0))
        other.bind(ours.getsockname())
        other.listen()
        with pytest.raises(ConfigError, match="in use; another port: --port"):
            asyncio.run(serve(ours))
