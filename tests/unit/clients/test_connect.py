"""Settings of the factory: single values or a struct, and every wrong one is named."""

from typing import Any

import pytest

from muro.clients.connect import make_config
from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.engines.echo import EchoEngine
from muro.errors import ConfigError


def test_single_settings_find_their_struct() -> None:
    config = make_config(None, {"engine": "echo", "options": {"a": 1}, "num_engines": 2, "close_timeout": 1})
    assert config == ConnectConfig(engine=EngineConfig(options={"a": 1}), num_engines=2, close_timeout=1.0)


def test_a_struct_is_taken_as_it_is() -> None:
    config = ConnectConfig(num_engines=3)
    assert make_config(config, {}) is config
    with pytest.raises(ConfigError, match="not both"):
        make_config(config, {"num_engines": 2})


def test_a_name_in_place_of_the_struct_is_told_how_to_be_given() -> None:
    wrong: Any = "echo"
    with pytest.raises(ConfigError, match="'echo'; give a ConnectConfig, or settings by name"):
        make_config(wrong, {})


def test_a_factory_goes_by_its_importable_name() -> None:
    assert make_config(None, {"engine": EchoEngine}).engine.engine == "muro.engines.echo:EchoEngine"


def test_a_restart_policy_by_its_name() -> None:
    assert make_config(None, {"restart": "always"}).restart == RestartPolicy(policy="always")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"enigne": "echo"}, "enigne"),
        ({"rank": 1}, "rank"),
        ({"num_engines": "two"}, "num_engines"),
        ({"num_engines": 0}, "num_engines"),
        ({"startup_timeout": -1}, "startup_timeout"),
        ({"engine": lambda: None}, "top level"),
        ({"restart": "sometimes"}, "'sometimes' - at `\\$.restart.policy`"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_config(None, settings)
