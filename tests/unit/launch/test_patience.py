from muro.ids import EngineRank
from muro.launch.patience import Patience, Sight

A, B = EngineRank(0), EngineRank(1)
HELLO = Sight("no HELLO yet", "interpreter")
LOADING = Sight("loading", "loading", 10)
LOADING_MORE = Sight("loading", "loading", 20)


def test_silence_is_given_up() -> None:
    patience = Patience([A], 10, now=100)
    assert patience.look({A: HELLO}, 101) == [A]
    assert patience.overdue(110.9) is None
    assert patience.remaining(105) == 6
    assert patience.overdue(111) == A
    assert patience.remaining(120) == 0


def test_progress_is_never_cut() -> None:
    patience = Patience([A], 10, now=0)
    for step in range(1, 50):
        now = 9.0 * step
        assert patience.look({A: Sight("loading", "loading", step)}, now) == [A]
        assert patience.overdue(now + 9.9) is None


def test_progress_of_one_does_not_excuse_another() -> None:
    patience = Patience([A, B], 10, now=0)
    patience.look({A: HELLO, B: HELLO}, 1)
    assert patience.look({A: LOADING, B: HELLO}, 9) == [A]
    assert patience.look({A: LOADING_MORE, B: HELLO}, 11) == [A]
    assert patience.overdue(11) == B


def test_who_has_arrived_is_not_waited_for() -> None:
    patience = Patience([A, B], 10, now=0)
    patience.look({A: HELLO, B: HELLO}, 0)
    assert patience.look({B: LOADING}, 5) == [B]
    assert patience.overdue(14.9) is None
    assert patience.look({}, 14.9) == []
    assert patience.overdue(1000) is None
    assert patience.remaining(1000) == 10


def test_the_longest_silent_is_blamed() -> None:
    patience = Patience([A, B], 10, now=0)
    patience.look({A: HELLO, B: HELLO}, 0)
    patience.look({A: LOADING, B: HELLO}, 1)
    assert patience.overdue(50) == B


def test_sight_in_words() -> None:
    assert str(LOADING) == "phase 'loading', 10 %; handshake: loading"
    assert str(Sight("no HELLO yet")) == "handshake: no HELLO yet"
