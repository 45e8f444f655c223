"""Where load is put."""

import pytest

from muro.bench.serve import _place
from muro.errors import ConfigError


def test_the_place_of_a_server() -> None:
    assert _place("http://127.0.0.1:8000/v1") == ("127.0.0.1", 8000)
    assert _place("http://[::1]") == ("::1", 80)


@pytest.mark.parametrize("url", ["localhost:80", "http://127.0.0.1:abc", "http://[::1", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address to put load on"):
        _place(url)
