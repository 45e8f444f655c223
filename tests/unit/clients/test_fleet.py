"""Who gets a request, and what is counted for whom."""

from typing import Any

import pytest

from muro.clients.engine import KnownEngine
from muro.clients.fleet import Fleet
from muro.errors import EngineDeadError, InvalidRequestError
from muro.ids import EngineRank, Generation
from muro.parallel.balance import Balancer
from muro.parallel.prefix import PrefixIndex
from muro.wire.request import LoRARequest
from tests.support.asking import ask

RANKS = [EngineRank(rank) for rank in range(3)]


def new_fleet(balancer: Balancer | None = None) -> Fleet:
    engines = {rank: KnownEngine(rank) for rank in RANKS}
    for engine in engines.values():
        engine.joined(None)
    return Fleet(engines, balancer)


def choose(fleet: Fleet, prompt: list[int] | None = None, **fields: Any) -> int:
    request = ask("a", prompt=prompt or [1])
    for name, value in fields.items():
        setattr(request, name, value)
    return fleet.choose(request, 0.0).rank


def counts(fleet: Fleet) -> list[int]:
    return [fleet.in_flight(rank) for rank in RANKS]


def test_the_one_with_the_fewest_in_flight() -> None:
    fleet = new_fleet()
    assert [choose(fleet) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    for _ in range(2):
        fleet.ended(fleet.engines[RANKS[1]])
    assert [choose(fleet) for _ in range(2)] == [1, 1]
    assert counts(fleet) == [2, 2, 2]


def test_without_any_the_one_that_comes_back_or_died_last_says_why() -> None:
    fleet = new_fleet()
    for rank in RANKS[:2]:
        fleet.died(rank, 0, EngineDeadError(f"engine {rank} has died", rank=rank))
    fleet.doom({RANKS[2]: EngineDeadError("engine 2 has died", rank=2, restarting=True)})
    with pytest.raises(EngineDeadError, match="engine 2") as caught:
        fleet.check_serving()
    assert caught.value.restarting
    fleet.died(RANKS[2], 0, EngineDeadError("engine 2 has died", rank=2, restarting=True))
    with pytest.raises(EngineDeadError, match="engine 2"):
        fleet.check_serving()


def test_who_has_died_gets_nothing_and_has_nothing() -> None:
    fleet = new_fleet()
    for _ in range(6):
        choose(fleet)
    dead = fleet.engines[RANKS[1]]
    fleet.doom({RANKS[1]: EngineDeadError("killed", rank=1)})
    fleet.ended(dead)  # it had been sent before
    assert counts(fleet) == [2, 0, 2] and [choose(fleet) for _ in range(2)] == [0, 2]
    assert fleet.died(RANKS[1], 0, EngineDeadError("killed", rank=1, restarting=True)) is dead
    assert fleet.died(RANKS[1], 0, EngineDeadError("killed", rank=1)) is None
    fleet.succeeded(RANKS[1], Generation(1), None)
    fleet.ended(dead)
    assert dead not in fleet and counts(fleet) == [3, 0, 3]
    assert [choose(fleet) for _ in range(3)] == [1, 1, 1]


def test_a_rank_that_was_asked_for() -> None:
    fleet = new_fleet()
    assert [choose(fleet, data_parallel_rank=2) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(InvalidRequestError, match="ranks: 0, 1, 2") as caught:
        choose(fleet, data_parallel_rank=3)
    assert caught.value.param == "data_parallel_rank"
    fleet.died(RANKS[2], 0, EngineDeadError("killed by SIGKILL", rank=2))
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        choose(fleet, data_parallel_rank=2)
    assert counts(fleet) == [0, 0, 0]


def test_nobody_is_left() -> None:
    fleet = new_fleet()
    for rank in RANKS:
        assert not fleet.hopeless
        fleet.died(rank, 0, EngineDeadError("killed by SIGKILL", rank=rank))
    assert fleet.hopeless
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        choose(fleet)


def test_a_prompt_goes_where_its_beginning_was_computed_with_the_same_adapter_and_salt() -> None:
    fleet = new_fleet(Balancer(RANKS, prefix=PrefixIndex(16)))
    prompt = list(range(64))
    first = choose(fleet, prompt)
    adapter = LoRARequest("french", 1, "/french")
    elsewhere = {choose(fleet, prompt, cache_salt="mine"), choose(fleet, prompt, lora_request=adapter)}
    assert first not in elsewhere
    for rank in RANKS:
        fleet.ended(fleet.engines[rank])
    assert choose(fleet, [*prompt, 1, 2]) == first


# --- Coming and going --------------------------------------------------------------------------------------------


def test_who_is_to_leave_gets_no_more_and_goes_on() -> None:
    fleet = new_fleet()
    for _ in range(3):
        choose(fleet)
    leaving = fleet.engines[RANKS[1]]
    fleet.leave(RANKS[1])
    assert sorted(choose(fleet) for _ in range(4)) == [0, 0, 2, 2]
    with pytest.raises(InvalidRequestError, match="ranks: 0, 2"):
        choose(fleet, data_parallel_rank=1)
    assert leaving.serving and fleet.in_flight(RANKS[1]) == 1
    fleet.ended(leaving)
    fleet.ended(leaving)  # it has nothing more, whoever says so
    assert fleet.in_flight(RANKS[1]) == 0
    fleet.stay(RANKS[1])
    assert choose(fleet) == 1


def test_whoever_leaves_stays_so_when_it_dies_and_comes_back() -> None:
    fleet = new_fleet()
    fleet.leave(RANKS[1])
    fleet.died(RANKS[1], 0, EngineDeadError("killed", rank=1, restarting=True))
    fleet.succeeded(RANKS[1], Generation(1), None)
    assert {choose(fleet) for _ in range(4)} == {0, 2}
    fleet.stay(RANKS[1])
    assert choose(fleet) == 1


def test_who_has_left_is_forgotten_and_may_come_back_as_another_one() -> None:
    fleet = new_fleet()
    fleet.left(RANKS[1], EngineDeadError("was let go", rank=1))
    assert fleet.died(RANKS[1], 0, EngineDeadError("killed", rank=1)) is None
    fleet.succeeded(RANKS[1], Generation(1), None)  # a start that was under way
    assert {choose(fleet) for _ in range(4)} == {0, 2}
    fleet.remove(RANKS[1])
    fleet.remove(RANKS[1])
    fleet.succeeded(RANKS[1], Generation(1), None)
    assert list(fleet.engines) == [0, 2]
    fleet.add(RANKS[1], Generation(2), None)
    assert list(fleet.engines) == [0, 1, 2] and choose(fleet) == 1
