"""The engine of a rank that was started elsewhere, by a table."""

from hypothesis import given
from hypothesis import strategies as st

from muro.ids import EngineRank
from muro.launch.remote_rank import RemoteRank, RemoteState


def rank() -> RemoteRank:
    return RemoteRank(EngineRank(3))


def test_a_loss_is_told_once() -> None:
    one = rank()
    assert one.lost(5.0, awaited=True) and not one.lost(6.0, awaited=True)
    assert one.state is RemoteState.AWAITED and one.generation == 0


def test_a_successor_serves_under_a_generation_of_its_own() -> None:
    one = rank()
    one.lost(5.0, awaited=True)
    assert one.hello() and one.generation == 1
    assert one.ready(8.5) == 3.5 and one.state is RemoteState.SERVING
    assert one.lost(9.0, awaited=True)


def test_successors_that_go_make_room_for_others() -> None:
    one = rank()
    one.lost(0.0, awaited=True)
    assert one.hello() and one.gone() and not one.gone()
    assert one.hello() and one.hello() and one.generation == 3
    assert one.ready(1.0) == 1.0


def test_nobody_greets_in_the_place_of_one_that_serves_or_is_given_up() -> None:
    one = rank()
    assert not one.hello()
    assert one.lost(0.0, awaited=False) and one.state is RemoteState.GIVEN_UP
    assert not one.hello() and not one.lost(1.0, awaited=True)


@given(st.lists(st.sampled_from(["lost", "hello", "gone", "ready"])))
def test_generations_only_grow(events: list[str]) -> None:
    one, seen = rank(), 0
    for event in events:
        match event:
            case "lost":
                one.lost(0.0, awaited=True)
            case "hello":
                one.hello()
            case "gone":
                one.gone()
            case "ready":
                one.ready(0.0)
        assert one.generation >= seen
        seen = one.generation
