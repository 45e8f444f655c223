"""limits.py: which bounds make sense."""

from __future__ import annotations

import resource

import pytest

from muro.errors import ConfigError
from muro.server.limits import HttpLimits, connections_for, file_limit, raise_file_limit


@pytest.mark.parametrize("name", ["max_connections", "head_timeout", "request_timeout", "max_body_bytes"])
def test_bounds_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        HttpLimits(**{name: 0})
    HttpLimits(**{name: 1})


def test_idle_connections_outlive_those_of_proxies() -> None:
    assert HttpLimits().keep_alive_timeout > 90


def test_callers_leave_files_for_the_rest() -> None:
    assert connections_for(8192, 1 << 20) == 8192
    assert connections_for(8192, 256) == 128
    with pytest.raises(ConfigError, match="ulimit -n"):
        connections_for(8192, 100)


def test_the_soft_limit_of_files_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert file_limit() == 256
        raise_file_limit()
        assert file_limit() == hard or hard == resource.RLIM_INFINITY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
