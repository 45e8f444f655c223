"""Which requests may run after deaths of their engine, and which of them did it. Pure; not for several threads.

Every request that is on its way through an engine when it dies is under suspicion, and most of them are innocent. So:

- Each death is a strike; a new token wipes the strikes off. With two strikes a request is *suspect*.
- Suspects are tried one at a time, and nobody else is let in meanwhile; those with the fewest tokens first, since what
  kills an engine at once has none. A trial ends with a new token.
- A request is convicted only by a death that it was alone in: its second crash alone, or the second strike. If
  somebody else may have sent the signal, it takes `PATIENCE` such deaths in a row without a token.

A trial does not wait for those who run already. If the engine dies then, nobody was alone; but after that death
nobody runs any more, so that the next trial is one.
"""

from __future__ import annotations

from collections.abc import Hashable

from muro.errors import EngineDeadError, RequestFailedError
from muro.llm.replay import sent_by_others

Engine = tuple[int, int]
"""Rank and generation."""

SUSPECT = 2
"""Strikes that make a suspect."""
PATIENCE = 3
"""Deaths alone, without a token in between, that convict although a signal from outside may have been the cause."""


class Case:
    """What is known of one request."""

    __slots__ = (
        "crashes_alone",
        "deaths",
        "engine",
        "killed_alone",
        "number",
        "strikes",
        "tokens",
        "verdict",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.engine: Engine | None = None
        self.deaths: list[Engine] = []
        self.tokens = self.strikes = self.crashes_alone = self.killed_alone = 0
        self.verdict: RequestFailedError | None = None

    @property
    def suspect(self) -> bool:
        return self.strikes >= SUSPECT

    @property
    def rank(self) -> tuple[int, int]:
        """Who is tried first: the lowest."""
        return self.tokens, self.number


class Quarantine:
    """The requests of one front-end, by keys of its choice.

    A request is entered, asks before each attempt, begins, delivers, dies, asks again ... and leaves, whatever its end.
    """

    def __init__(self) -> None:
        self._cases: dict[Hashable, Case] = {}
        self._running: dict[Engine, dict[Hashable, Case]] = {}
        self._count = 0
        self._line: dict[Hashable, Case] = {}
        self._tried: Hashable | None = None

    def __len__(self) -> int:
        """Requests that have entered and not left."""
        return len(self._cases)

    def enter(self, key: Hashable) -> None:
        """A new request."""
        self._count += 1
        self._cases[key] = Case(self._count)

    def leave(self, key: Hashable) -> None:
        """It has ended, or nobody wants it any more; unknown keys are ignored."""
        case = self._cases.pop(key, None)
        if case is not None:
            self._line.pop(key, None)
            self._stop(key, case)
            if self._tried == key:
                self._tried = None

    def ask(self, key: Hashable) -> None:
        """It wants to run again; suspects stand in line from now on."""
        case = self._cases[key]
        if case.suspect and self._tried != key:
            self._line[key] = case

    def may_run(self, key: Hashable) -> bool:
        """Whether it may be sent now. What changes the answer for others is `leave`, `delivered` and `died`."""
        if self._tried == key:
            return True
        if self._tried is not None:
            return False
        if not self._line:
            return not self._cases[key].suspect
        if self.first != key:
            return False
        self._tried = key
        del self._line[key]
        return True

    @property
    def trying(self) -> bool:
        """Whether one is being tried, and all others have to wait."""
        return self._tried is not None

    @property
    def first(self) -> Hashable | None:
        """The suspect who is to be tried next; None: there is none, all may run."""
        return min(self._line, key=lambda key: self._line[key].rank, default=None)

    def began(self, key: Hashable, engine: Engine) -> None:
        """It was sent to an engine."""
        case = self._cases[key]
        case.engine = engine
        self._running.setdefault(engine, {})[key] = case

    def delivered(self, key: Hashable, count: int) -> bool:
        """`count` new tokens were taken over, more than none; whether its trial is over by that.

        They may be those of an attempt whose death is known already: then that death stays a strike.
        """
        case = self._cases[key]
        case.tokens += count
        case.killed_alone = 0
        case.strikes = 0 if case.engine is not None else min(case.strikes, 1)
        if self._tried != key:
            return False
        self._tried = None
        return True

    def died(self, engine: Engine, death: EngineDeadError) -> bool:
        """An engine has died with everything that was on it; whether that was news."""
        lost = self._running.pop(engine, None)
        if lost is None:
            return False
        for key, case in lost.items():
            case.engine = None
            case.deaths.append(engine)
            case.strikes += 1
            if self._tried == key:
                self._tried = None
            if len(lost) == 1:
                _judge(case, death)
        return True

    def verdict(self, key: Hashable) -> RequestFailedError | None:
        """The error of a convicted request: it must not run again."""
        return self._cases[key].verdict

    def _stop(self, key: Hashable, case: Case) -> None:
        """It is on no engine any more."""
        if case.engine is not None:
            running = self._running[case.engine]
            del running[key]
            if not running:
                del self._running[case.engine]


def _judge(case: Case, death: EngineDeadError) -> None:
    """Weigh a death that a request was alone in."""
    if sent_by_others(death):
        case.killed_alone += 1
        guilty = case.killed_alone >= PATIENCE
    else:
        case.crashes_alone += 1
        guilty = case.suspect or case.crashes_alone >= SUSPECT
    if guilty:
        case.verdict = _verdict(case, death)


def _verdict(case: Case, death: EngineDeadError) -> RequestFailedError:
    times = ", ".join(f"engine {rank} generation {generation}" for rank, generation in case.deaths[-8:])
    error = RequestFailedError(
        f"this request was running when its engine died, {len(case.deaths)} times ({times}), the last time alone; "
        f"it is not tried again. {death.message}"
    )
    error.__cause__ = death
    return error
