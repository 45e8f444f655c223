"""Settings of the server that are wrong are told before anything is started."""

import pytest

from muro.errors import ConfigError
from muro.server.lifespan import ServerConfig


@pytest.mark.parametrize(
    "origin", ["*", "null", "http://localhost:3000", "https://example.org", "http://[::1]:80", "app-extension://abc"]
)
def test_origins(origin: str) -> None:
    assert ServerConfig(allowed_origins=(origin,)).allowed_origins == (origin,)


@pytest.mark.parametrize("origin", ["", "example.org", "http://example.org/", "http://example.org/app", "HTTP://a.org"])
def test_what_no_web_page_would_match(origin: str) -> None:
    with pytest.raises(ConfigError, match="without a path or a slash"):
        ServerConfig(allowed_origins=(origin,))
