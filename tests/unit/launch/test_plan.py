import json

import msgspec
import pytest

from muro.config import ConnectConfig, EngineConfig, LockstepConfig, RayConfig
from muro.errors import ConfigError
from muro.ids import EngineRank, Generation
from muro.launch.plan import LaunchPlan, plan_launch, plan_replacement
from muro.wire.handshake import Addresses, Expected, Features

ADDRESSES = Addresses(["ipc:///i"], ["ipc:///o"])
FIRST, SECOND = EngineRank(0), EngineRank(1)


def plan(config: ConnectConfig) -> LaunchPlan:
    return plan_launch(config, ADDRESSES, "ipc:///h", Features("1"))


def test_all_engines_are_local_by_default() -> None:
    made = plan(ConnectConfig(num_engines=2, env={"A": "b"}, startup_timeout=5))
    assert list(made.local) == list(made.expected) == [0, 1]
    assert [(c.rank, c.handshake_address, c.local, c.headless) for c in made.local.values()] == [
        (0, "ipc:///h", True, False),
        (1, "ipc:///h", True, False),
    ]
    assert made.expected[SECOND] == Expected(local=True, headless=False)
    assert (made.env["A"], made.startup_timeout) == ("b", 5)
    assert made.init.addresses == ADDRESSES
    assert made.init.parallel_config == {}
    assert made.init.muro == Features("1")


def test_the_others_dial_in() -> None:
    made = plan(ConnectConfig(num_engines=2, num_local_engines=1))
    assert list(made.local) == [0]
    assert made.expected == {FIRST: Expected(local=True, headless=False), SECOND: Expected(local=False)}
    assert made.name(FIRST) == "engine 0 (echo)"
    assert made.name(SECOND) == "engine 1 (started elsewhere)"


def test_engines_on_ray_are_ours_and_not_here() -> None:
    made = plan(ConnectConfig(num_engines=2, ray=RayConfig(resources={"CPU": 2.5}), insecure_tcp=True, env={"A": "b"}))
    assert list(made.local) == [0, 1] and made.name(SECOND) == "engine 1 (echo)"
    assert made.expected[SECOND] == Expected(local=False, headless=False)
    assert not made.local[SECOND].local and made.local[SECOND].insecure_tcp
    assert (made.env["A"], made.env["MURO_CPUS"]) == ("b", "3")


def test_no_local_engine() -> None:
    assert plan(ConnectConfig(num_local_engines=0)).local == {}


def test_what_travels_is_plain_json() -> None:
    made = plan(ConnectConfig(engine=EngineConfig(engine="m:F", model="/models/a", options={"x": [1]})))
    travelled = json.loads(json.dumps(made.payload(FIRST)))
    assert msgspec.convert(travelled, EngineConfig) == made.local[FIRST]
    assert made.title(FIRST) == ["--rank", "0", "--engine", "m:F", "--model", "/models/a"]


def test_ranks_that_begin_elsewhere() -> None:
    made = plan(ConnectConfig(num_engines=2, start_rank=4))
    assert list(made.local) == list(made.expected) == [4, 5]
    assert [config.rank for config in made.local.values()] == [4, 5]


GROUP = LockstepConfig(size=2, address="tcp://127.0.0.1:29600", token="t", interval=8)
LOCKSTEP = ConnectConfig(num_engines=2, engine=EngineConfig(lockstep=LockstepConfig(interval=8)))


def test_lockstep_engines_are_told_of_each_other() -> None:
    made = plan_launch(LOCKSTEP, ADDRESSES, "ipc:///h", group=GROUP)
    assert [config.lockstep for config in made.local.values()] == [GROUP, GROUP]
    assert made.init.parallel_config == {
        "data_parallel_master_ip": "127.0.0.1",
        "data_parallel_master_port": 29600,
        "_data_parallel_master_port_list": [29600],
        "data_parallel_size": 2,
    }
    here = msgspec.structs.replace(GROUP, address="ipc:///d/group-0")
    assert plan_launch(LOCKSTEP, ADDRESSES, "ipc:///h", group=here).init.parallel_config == {"data_parallel_size": 2}


def test_their_successors_come_together() -> None:
    made = plan_replacement(LOCKSTEP, [FIRST, SECOND], Generation(3), ADDRESSES, "ipc:///h", group=GROUP)
    assert [(c.rank, c.generation, c.lockstep) for c in made.local.values()] == [(0, 3, GROUP), (1, 3, GROUP)]
    assert list(made.expected) == [0, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"start_rank": 2}, "start_rank is 2"),
        ({"num_local_engines": 0, "host": "127.0.0.1"}, "rank 0 is started here"),
        ({"num_local_engines": 1, "host": "10.0.0.1", "curve_dir": "/keys"}, "in the clear"),
    ],
)
def test_what_a_lockstep_group_cannot_be(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ConnectConfig(num_engines=2, engine=EngineConfig(lockstep=LockstepConfig()), **given)  # type: ignore[arg-type]
