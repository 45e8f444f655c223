"""Where the users of a front-end are sent."""

import pytest

from muro.errors import ConfigError
from muro.probe.check.asking import Api


@pytest.mark.parametrize(
    "url", ["localhost:80", "https://127.0.0.1:8000", "http://127.0.0.1:abc", "http://[::1", "http://"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of an HTTP API"):
        Api(url)
