"""ray_options.py: what the flags say of Ray."""

import pytest

from muro.cli.ray_options import RayOptions, ray_config
from muro.config import ConnectConfig, RayConfig
from muro.errors import ConfigError


def test_what_the_flags_say() -> None:
    assert ray_config(RayOptions()) is None
    assert ray_config(RayOptions(data_parallel_backend="ray")) == RayConfig(resources={"CPU": 1.0})
    asked = RayOptions(data_parallel_backend="ray", ray_resources='{"CPU": 4, "GPU": 1}')
    assert ray_config(asked) == RayConfig(resources={"CPU": 4.0, "GPU": 1.0})


@pytest.mark.parametrize("text", ["", "CPU=1", '{"CPU": "one"}', "[1]", "{}", '{"CPU": 0}', '{"CPU": -1}', '{"": 1}'])
def test_resources_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        ray_config(RayOptions(data_parallel_backend="ray", ray_resources=text))


def test_resources_without_ray() -> None:
    with pytest.raises(ConfigError, match="data-parallel-backend ray"):
        ray_config(RayOptions(ray_resources='{"CPU": 1}'))


def test_ray_starts_all_engines() -> None:
    with pytest.raises(ConfigError, match="Ray starts all"):
        ConnectConfig(ray=RayConfig(), num_engines=2, num_local_engines=1)
    assert ConnectConfig(ray=RayConfig(), insecure_tcp=True).host is None, "it is found out later"
