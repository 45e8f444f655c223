"""ray_cluster.py, as far as it goes without Ray; the rest: tests/cluster."""

import importlib.util

import pytest

from muro import connect
from muro.cluster.ray_cluster import RayCluster, RayPlace, _amounts, _options
from muro.config import RayConfig
from muro.errors import MissingExtraError

HAS_RAY = importlib.util.find_spec("ray") is not None


def test_resources_as_options_of_an_actor() -> None:
    asked = {"CPU": 2.0, "GPU": 0.5, "memory": 1e9, "rack": 1.0}
    assert _options(asked) == {"num_cpus": 2.0, "num_gpus": 0.5, "memory": 1e9, "resources": {"rack": 1.0}}
    assert _options({"GPU": 1.0}) == {"num_cpus": 0, "num_gpus": 1.0, "resources": {}}


def test_resources_in_words() -> None:
    assert _amounts({"GPU": 1.0, "CPU": 4.0, "node:10.0.0.1": 1.0, "object_store_memory": 5e8}) == "CPU 4, GPU 1"
    assert RayPlace({"CPU": 1.0, "GPU": 0.0}).words == "a place with CPU 1"


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"muro\[ray\]"):
        RayCluster(RayConfig()).open()
    with pytest.raises(MissingExtraError, match=r"muro\[ray\]"):
        connect(ray=RayConfig())


def test_closing_what_was_not_opened() -> None:
    RayCluster(RayConfig()).close()
