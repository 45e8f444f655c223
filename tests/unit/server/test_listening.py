"""listening.py: which certificates are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.server.listening import tls_context

TLS = Path(__file__).parents[2] / "data/tls"


def test_a_certificate_and_its_key() -> None:
    assert tls_context(None, None) is None
    assert tls_context(str(TLS / "cert.pem"), str(TLS / "key.pem")) is not None


@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("missing.pem", None, "missing.pem"),
        ("key.pem", None, "cannot be used"),
        ("cert.pem", None, "cannot be used"),
        ("cert.pem", "locked_key.pem", "cannot be used"),
        (None, "key.pem", "needs --ssl-certfile"),
    ],
)
def test_what_cannot_be_used(cert: str | None, key: str | None, words: str) -> None:
    files = [None if name is None else str(TLS / name) for name in (cert, key)]
    with pytest.raises(ConfigError, match=words):
        tls_context(*files)
