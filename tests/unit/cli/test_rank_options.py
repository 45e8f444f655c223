"""rank_options.py: which ranks a front-end has, and which flags do not go together."""

from __future__ import annotations

from typing import Any

import pytest

from muro.cli.options import ServeOptions
from muro.cli.rank_options import Ranks, check_headless, group_elsewhere, ranks_of_front_end
from muro.config import LockstepConfig
from muro.errors import ConfigError


def options(**given: Any) -> ServeOptions:
    return ServeOptions(**{f"data_parallel_{name}": value for name, value in given.items()})


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ({}, Ranks(0, 1, 1, None)),
        ({"size": 4}, Ranks(0, 4, 4, None)),
        ({"size": 4, "size_local": 1}, Ranks(0, 4, 1, None)),
        ({"size": 4, "lockstep": True}, Ranks(0, 4, 4, LockstepConfig())),
        ({"size": 4, "size_local": 2, "hybrid_lb": True}, Ranks(0, 2, 2, None, others=True)),
        ({"size": 4, "size_local": 2, "hybrid_lb": True, "start_rank": 2}, Ranks(2, 2, 2, None, others=True)),
        ({"size": 4, "rank": 3}, Ranks(3, 1, 1, None, others=True)),
        ({"size": 4, "rank": 0, "external_lb": True, "size_local": 1}, Ranks(0, 1, 1, None, others=True)),
        ({"rank": 0}, Ranks(0, 1, 1, None)),
        ({"size": 4, "rank": 2, "start_rank": 2}, Ranks(2, 1, 1, None, others=True)),
    ],
)
def test_ranks(given: dict[str, Any], ranks: Ranks) -> None:
    assert ranks_of_front_end(options(**given)) == ranks


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 4, "hybrid_lb": True, "external_lb": True}, "choose one"),
        ({"size": 4, "hybrid_lb": True, "rank": 1}, "choose one"),
        ({"size": 4, "rank": 1, "lockstep": True}, "--data-parallel-lockstep"),
        ({"size": 4, "size_local": 2, "hybrid_lb": True, "lockstep": True}, "--data-parallel-lockstep"),
        ({"size": 4, "hybrid_lb": True}, "--data-parallel-size-local"),
        ({"size": 4, "hybrid_lb": True, "size_local": 0}, "are not some of 4"),
        ({"size": 4, "hybrid_lb": True, "size_local": 2, "start_rank": 3}, "are not some of 4"),
        ({"size": 4, "external_lb": True}, "--data-parallel-rank"),
        ({"size": 4, "rank": 4}, "the last rank is 3"),
        ({"size": 4, "rank": 1, "size_local": 2}, "--data-parallel-size-local"),
        ({"size": 4, "rank": 1, "start_rank": 2}, "--data-parallel-start-rank"),
        ({"size": 4, "start_rank": 2}, "--headless"),
        ({"size": 2, "size_local": 3}, "--data-parallel-size-local is 3"),
        ({"size": 2, "size_local": 0, "lockstep": True}, "--data-parallel-size-local is 0"),
    ],
)
def test_what_does_not_go_together_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ranks_of_front_end(options(**given))


@pytest.mark.parametrize("given", [{"hybrid_lb": True}, {"external_lb": True}, {"rank": 1}])
def test_an_engine_without_a_front_end_has_no_load_balancing(given: dict[str, Any]) -> None:
    check_headless(options(start_rank=3))
    with pytest.raises(ConfigError, match="--headless"):
        check_headless(options(**given))


def test_an_engine_without_a_front_end_is_one_of_as_many_as_there_are() -> None:
    check_headless(options(size=4, start_rank=3))
    with pytest.raises(ConfigError, match="the last rank is 3"):
        check_headless(options(size=4, start_rank=4))


def test_a_lockstep_engine_without_a_front_end_knows_its_group() -> None:
    assert group_elsewhere(options(size=2), "10.0.0.1") is None
    told = group_elsewhere(options(size=2, lockstep=True), "10.0.0.1")
    assert told == LockstepConfig(size=2, address="tcp://10.0.0.1:29600")
