"""A supervisor of scripted children, and successors that come up as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from muro.config import RestartPolicy
from muro.ids import EngineRank, Generation
from muro.launch.attempt import Replacement
from muro.launch.events import Event
from muro.launch.spawn import Child
from muro.launch.supervisor import Supervisor
from muro.testing.clock import ManualClock
from muro.transport.wakeup import Wakeup
from tests.support.deadline import until
from tests.support.fake_engine import RESPONSE as READY
from tests.support.scripted_child import ScriptedChild

POLICY = RestartPolicy(policy="on-failure", backoff_first=1.0, backoff_max=8.0, budget=3, window=60.0)


class Starts:
    """Starts successors as a test says: what it returns or raises is the outcome, in turn."""

    def __init__(self, *outcomes: ScriptedChild | Exception | Callable[[Wakeup], ScriptedChild]) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[int, int]] = []

    def __call__(
        self, ranks: Sequence[EngineRank], generation: Generation, *, on_progress: Any, cancel: Wakeup
    ) -> dict[EngineRank, Replacement]:
        started = {}
        for rank in ranks:
            self.asked.append((rank, generation))
            outcome = self.outcomes.pop(0)
            if callable(outcome):
                outcome = outcome(cancel)
            if isinstance(outcome, Exception):
                raise outcome
            started[rank] = Replacement(cast(Child, outcome), READY)
        return started


class Watched:
    """A supervisor, what it tells, and its clock. It has no thread of its own: `look` does its work."""

    def __init__(self, *children: ScriptedChild, **more: Any) -> None:
        self.clock = ManualClock(100.0)
        self.events: list[Event] = []
        named = {EngineRank(rank): cast(Child, child) for rank, child in enumerate(children)}
        self.supervisor = Supervisor(named, clock=self.clock, **more)
        self.supervisor.subscribe(self.events.append)

    def look(self, after: float = 0.0) -> list[Event]:
        """What is new."""
        seen = len(self.events)
        self.clock.advance(after)
        self.supervisor.look()
        return self.events[seen:]

    def look_until(self, kind: type[Event]) -> Event:
        """Until an attempt's thread has come to its end."""
        seen = len(self.events)

        def found() -> Event | None:
            self.supervisor.look()
            return next((event for event in self.events[seen:] if isinstance(event, kind)), None)

        return cast(Event, until(found))
