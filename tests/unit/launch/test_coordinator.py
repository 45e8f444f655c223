"""Addresses of a coordinator, before there is one."""

import msgspec
import pytest

from muro.config import CoordinatorConfig
from muro.errors import ConfigError
from muro.launch.coordinator import coordinator_config
from muro.transport.endpoint import EndpointDirectory, parse_address
from muro.transport.sockets import bind_pull, close


def test_on_this_machine() -> None:
    with EndpointDirectory() as directory:
        config = coordinator_config(4, directory, lockstep=True, release="0.25")
        addresses = {config.input_address, config.output_address, config.stats_address}
        assert len(addresses) == 3 and all(address.startswith(f"ipc://{directory.path}/") for address in addresses)
        assert (config.num_engines, config.lockstep, config.release) == (4, True, "0.25")
        assert msgspec.convert(msgspec.to_builtins(config), CoordinatorConfig) == config


def test_for_others() -> None:
    config = coordinator_config(4, EndpointDirectory(), "127.0.0.1")
    addresses = [config.input_address, config.output_address, config.stats_address]
    assert len({parse_address(address).port for address in addresses} - {0}) == 3
    for address in addresses:
        close(bind_pull(address, patience=5.0))


def test_a_wildcard_is_no_address() -> None:
    with pytest.raises(ConfigError, match="every interface"):
        coordinator_config(4, EndpointDirectory(), "0.0.0.0")


@pytest.mark.parametrize("engines", [0, 65537])
def test_numbers_that_make_no_sense(engines: int) -> None:
    with pytest.raises(ConfigError, match="num_engines"):
        CoordinatorConfig(num_engines=engines, input_address="", output_address="", stats_address="")
