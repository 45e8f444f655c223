"""Settings that name a time take what a clock can wait for; an address is whole or refused."""

import math

import pytest

from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.errors import ConfigError


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300])
def test_what_no_clock_can_wait_for_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="startup_timeout is"):
        ConnectConfig(startup_timeout=value)
    with pytest.raises(ConfigError, match="stall_limit is"):
        ConnectConfig(stall_limit=value)
    with pytest.raises(ConfigError, match="shutdown_timeout is"):
        EngineConfig(shutdown_timeout=value)
    with pytest.raises(ConfigError, match="window is"):
        RestartPolicy(window=value)
    assert ConnectConfig(startup_timeout=1e9, stall_limit=None).stall_limit is None


def test_a_port_without_a_host_is_refused() -> None:
    with pytest.raises(ConfigError, match="host, the address at which engines dial it, is not set"):
        ConnectConfig(num_local_engines=0, handshake_port=29550)
    assert ConnectConfig(num_local_engines=0, host="127.0.0.1", handshake_port=29550).host == "127.0.0.1"
