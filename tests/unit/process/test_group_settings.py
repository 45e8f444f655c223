"""What a rank makes of what it is told of its group: by whoever started it, and by INIT."""

from typing import Any

import pytest

from muro.config import EngineConfig, LockstepConfig
from muro.errors import ConfigError
from muro.process.lockstep import group_hash, group_settings
from muro.wire.handshake import Addresses, Init


def init(**parallel_config: Any) -> Init:
    return Init(Addresses(["ipc:///i"], ["ipc:///o"]), parallel_config)


TOLD = {"data_parallel_size": 4, "data_parallel_master_ip": "10.0.0.1", "data_parallel_master_port": 29600}


def test_init_says_how_many_they_are_and_where_rank_0_is() -> None:
    given = EngineConfig(rank=3, lockstep=LockstepConfig(interval=8))
    group = group_settings(given, init(**TOLD)).lockstep
    assert group == LockstepConfig(size=4, address="tcp://10.0.0.1:29600", interval=8)
    assert group_settings(EngineConfig(rank=3), init(**TOLD)).lockstep == LockstepConfig(
        size=4, address="tcp://10.0.0.1:29600"
    )


def test_if_init_does_not_say_where_whoever_was_told_before_knows() -> None:
    given = EngineConfig(rank=1, lockstep=LockstepConfig(size=2, address="ipc:///g", token="t"))
    assert group_settings(given, init(data_parallel_size=2)) is given
    assert group_settings(given, init()) is given
    said = group_settings(given, init(**TOLD)).lockstep
    assert said == LockstepConfig(size=4, address="tcp://10.0.0.1:29600", token="t")


@pytest.mark.parametrize("told", [{}, {"data_parallel_size": 1}, {"data_parallel_size": "4"}])
def test_nothing_is_said_of_others(told: dict[str, Any]) -> None:
    given = EngineConfig(rank=1)
    assert group_settings(given, init(**told)) is given


def test_a_group_that_does_not_have_this_rank() -> None:
    with pytest.raises(ConfigError, match="rank 4 cannot be one of 4"):
        group_settings(EngineConfig(rank=4), init(**TOLD))
    with pytest.raises(ConfigError):
        group_settings(EngineConfig(rank=4), init(data_parallel_size=1 << 20))


def test_what_must_be_the_same_for_all() -> None:
    one = EngineConfig(rank=0, engine="sim", lockstep=LockstepConfig(size=2, address="ipc:///g", token="a"))
    other = EngineConfig(rank=1, engine="sim", lockstep=LockstepConfig(size=2, address="tcp://h:1"))
    assert group_hash(one) == group_hash(other) and len(group_hash(one)) == 64
    longer = EngineConfig(rank=1, engine="sim", lockstep=LockstepConfig(size=2, interval=8))
    assert group_hash(longer) != group_hash(one)
