"""Which requests may run after deaths of their engine, and which of them did it. Pure; not for several threads.

Every request that is on its way through an engine when it dies is under suspicion, and most of them are innocent. So:

- Each death is a strike; a new token wipes the strikes off. With two strikes a request is *suspect*.
- Suspects are tried one at a time, and nobody else is let in meanwhile; those with the fewest tokens first, since what
  kills an engine at once has none. A trial ends with a new token.
- A crash convicts a request that was alone in it, if it was its second crash alone; or its second strike, if nobody had
  left that engine before: whoever has done harm and ended may kill an engine afterwards.
- A signal that somebody else may have sent says less. It convicts a request that has `SURE` strikes, if the last
  `PATIENCE` deaths in a row hit it as the only one that had no token yet; one more for each time that it has gone on
  after a death. Between them all others are tried, which shows whether the engine dies without it.

A trial does not wait for those who run already. If the engine crashes then, nobody was alone; but after that death
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
"""Deaths in a row, as the only one without a token, that convict although somebody else may have sent the signal ..."""
SURE = 5
"""... together with so many strikes: as many as the default restart budget survives."""


class Case:
    """What is known of one request."""

    __slots__ = (
        "bare", "crashes", "deaths", "engine", "killed", "number", "recoveries", "strikes", "tokens", "verdict",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        """In order of arrival."""
        self.engine: Engine | None = None
        self.bare = True
        """Whether its present attempt has no token yet."""
        self.deaths: list[Engine] = []
        self.tokens = self.strikes = 0
        self.crashes = 0
        """In which it was alone."""
        self.killed = 0
        """Deaths in a row, by signals that anybody may have sent, in which it was the only bare one."""
        self.recoveries = 0
        """Attempts after a death that got tokens."""
        self.verdict: RequestFailedError | None = None

    @property
    def suspect(self) -> bool:
        return self.strikes >= SUSPECT

    @property
    def rank(self) -> tuple[int, int, int]:
        """Who is tried first: the lowest."""
        return self.killed, self.tokens, self.number


class Quarantine:
    """The requests of one front-end, by keys of its choice.

    A request is entered, asks before each attempt, begins, delivers, dies, asks again ... and leaves, whatever its end.
    """

    def __init__(self) -> None:
        self._cases: dict[Hashable, Case] = {}
        self._running: dict[Engine, dict[Hashable, Case]] = {}
        self._left: dict[int, Engine] = {}
        """By rank: the last engine on which a request has ended."""
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
        case.bare = True
        self._running.setdefault(engine, {})[key] = case

    def delivered(self, key: Hashable, count: int) -> bool:
        """`count` new tokens were taken over, more than none; whether its trial is over by that.

        They may be those of an attempt whose death is known already: then that death stays a strike.
        """
        case = self._cases[key]
        case.tokens += count
        if case.bare and case.deaths and case.engine is not None:
            case.recoveries += 1
        case.killed, case.bare, case.verdict = 0, False, None
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
        self._judge(list(lost.values()), death, fresh=self._left.get(engine[0]) != engine)
        return True

    def verdict(self, key: Hashable) -> RequestFailedError | None:
        """The error of a convicted request: it must not run again."""
        return self._cases[key].verdict

    def _judge(self, lost: list[Case], death: EngineDeadError, *, fresh: bool) -> None:
        """Weigh a death that hit `lost`; the engine was `fresh` if no request had ended on it."""
        bare = [case for case in lost if case.bare]
        sole = bare[0] if len(bare) == 1 and sent_by_others(death) else None
        for case in self._cases.values():
            if case is not sole:
                case.killed = 0
        if sole is not None:
            sole.killed += 1
            guilty, accused = sole.killed >= PATIENCE + sole.recoveries and sole.strikes >= SURE, sole
        elif len(lost) == 1 and not sent_by_others(death):
            accused = lost[0]
            accused.crashes += 1
            guilty = (fresh and accused.suspect) or accused.crashes >= SUSPECT
        else:
            return
        if guilty:
            accused.verdict = _verdict(accused, death)

    def _stop(self, key: Hashable, case: Case) -> None:
        """It is on no engine any more."""
        if case.engine is not None:
            self._left[case.engine[0]] = case.engine
            running = self._running[case.engine]
            del running[key]
            if not running:
                del self._running[case.engine]


def _verdict(case: Case, death: EngineDeadError) -> RequestFailedError:
    times = ", ".join(f"engine {rank} generation {generation}" for rank, generation in case.deaths[-8:])
    error = RequestFailedError(
        f"this request was running when its engine died, {len(case.deaths)} times ({times}), and nothing else explains "
        f"it; it is not tried again. {death.message}"
    )
    error.__cause__ = death
    return error
