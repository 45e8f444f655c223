import json

import msgspec

from muro.config import ConnectConfig, EngineConfig, RayConfig
from muro.ids import EngineRank
from muro.launch.plan import LaunchPlan, plan_launch
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
