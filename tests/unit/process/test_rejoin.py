"""What an engine does when its front-end has gone."""

from muro.process.rejoin import FIRST_PAUSE, LONGEST_PAUSE, STEADY, Rejoin


def test_without_being_told_to_stay_it_leaves() -> None:
    assert Rejoin(False).lost(0.0) is None and Rejoin(False).lost(1e6) is None


def test_the_pauses_grow_while_front_ends_fail_and_are_bounded() -> None:
    rejoin = Rejoin(True)
    pauses = [rejoin.lost(0.1) for _ in range(20)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_front_end_that_was_served_for_a_while_starts_them_anew() -> None:
    rejoin = Rejoin(True)
    for _ in range(10):
        rejoin.lost(STEADY - 1)
    assert rejoin.lost(STEADY) == FIRST_PAUSE
