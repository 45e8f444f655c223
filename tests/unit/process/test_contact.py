"""Whether front-ends are there, by a table."""

import pytest

from muro.process.contact import CONNECT_PATIENCE, TRANSITIONS, Contact, Presence


def test_a_connection_that_stood_and_ends_is_a_loss() -> None:
    contact = Contact(2, now=0.0)
    assert not contact.down(0), "an attempt that failed is followed by the next one"
    contact.up(0)
    contact.up(1)
    assert contact.down(0) and not contact.all_lost
    assert not contact.down(0), "told once"
    contact.up(0)
    assert not contact.down(0), "whoever dials there now is somebody else"
    assert contact.down(1) and contact.all_lost


def test_who_cannot_be_reached_in_time_is_lost() -> None:
    contact = Contact(3, now=100.0)
    contact.up(1)
    assert contact.due(100.0) == CONNECT_PATIENCE and contact.late(100.0) == []
    assert contact.due(101.0) == CONNECT_PATIENCE - 1
    assert contact.late(100.0 + CONNECT_PATIENCE) == [0, 2]
    assert contact.late(200.0) == [] and contact.due(200.0) is None
    assert not contact.all_lost


def test_nothing_is_due_once_all_are_there() -> None:
    contact = Contact(1, now=0.0)
    contact.up(0)
    assert contact.due(5.0) is None and contact.late(1000.0) == []


@pytest.mark.parametrize("presence", list(Presence))
def test_a_loss_is_for_good(presence: Presence) -> None:
    assert all(before is not Presence.LOST for before, _ in TRANSITIONS)
    assert presence in {*TRANSITIONS.values()} | {Presence.JOINING}


def test_one_of_several_beside_us_comes_back() -> None:
    contact = Contact(2, now=0.0, comes_back=True)
    assert contact.due(0.0) is None and contact.late(1e9) == [], "whenever that may be"
    contact.up(0)
    for _ in range(3):
        assert contact.down(0) and not contact.down(0)
        contact.up(0)
    assert not contact.down(1) and not contact.all_lost
