"""Who is told of events."""

import pytest

from muro.ids import EngineRank, Generation
from muro.launch.events import EngineLeft, Event
from muro.launch.listeners import Listeners

LEFT = EngineLeft(EngineRank(0), Generation(0))


def test_all_who_have_asked_in_order_until_they_want_no_more() -> None:
    listeners, told = Listeners(), list[tuple[str, Event]]()
    remove = [listeners.add(lambda event, name=name: told.append((name, event))) for name in "ab"]  # type: ignore[misc]
    listeners.tell(LEFT)
    remove[0]()
    remove[0]()
    listeners.tell(LEFT)
    assert told == [("a", LEFT), ("b", LEFT), ("b", LEFT)]


def test_one_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    listeners, told = Listeners(), list[Event]()
    listeners.add(lambda event: 1 / 0)  # type: ignore[arg-type, return-value]
    listeners.add(told.append)
    listeners.tell(LEFT)
    assert told == [LEFT] and "a listener for events of engines failed" in caplog.text
