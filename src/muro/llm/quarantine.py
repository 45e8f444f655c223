"""Which requests may run after deaths of their engine, and which of them did it. Pure; not for several threads.

Every request that is on its way through an engine when it dies is under suspicion, and most of them are innocent. So:

- Each death is a strike; a new token wipes the strikes off. With two strikes a request is *suspect*; or with three
  crashes between which it has not got `PROOF` tokens in one attempt, for some do harm behind their tokens.
- Suspects are tried, and nobody else is let in meanwhile; those with the fewest tokens first, since what kills an
  engine at once has none. A trial ends with a new token, or with so many as are the proof.
- The first few are tried alone, then two at once, four, and so on, for most are innocent and all others wait. After a
  death of several at once it is one at a time until no suspect is left: so this haste costs one death at most. Whoever
  was killed in a trial is tried alone.
- A crash convicts a request that was alone in it, if it was its second crash alone; or if it is suspect, and nobody had
  left that engine before: whoever has done harm and ended may kill an engine afterwards.
- A signal that somebody else may have sent says less. It convicts a request that has `SURE` strikes, if the last
  `PATIENCE` deaths in a row hit it as the only one that had no token yet, or one of a few that were tried; one more for
  each time that it has gone on after a death. Between them all others are tried, which shows whether the engine dies
  without it.

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
CRASHES = 3
"""So do as many crashes without `PROOF`."""
ALONE = 4
"""Trials of one at a time, of those who are most likely to have done it, before several are tried at once."""
PROOF = 8
"""Tokens of one attempt that show that a request does no harm."""
PATIENCE = 3
"""Deaths in a row, as the only one without a token, that convict although somebody else may have sent the signal ..."""
SURE = 5
"""... together with so many strikes: as many as the default restart budget survives."""


class Case:
    """What is known of one request."""

    __slots__ = (
        "alone", "bare", "crashes", "deaths", "engine", "killed", "number", "proof", "recoveries", "strikes", "tokens",
        "verdict",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        """In order of arrival."""
        self.engine: Engine | None = None
        self.bare = True
        """Whether its present attempt has no token yet."""
        self.deaths: list[Engine] = []
        self.tokens = self.strikes = 0
        self.proof = 0
        """Tokens of its present attempt."""
        self.crashes = self.alone = 0
        """Those since the last proof; and all in which it was alone."""
        self.killed = 0
        """Deaths in a row, by signals that anybody may have sent, in which it was the only bare one, or on trial."""
        self.recoveries = 0
        """Attempts after a death that got tokens."""
        self.verdict: RequestFailedError | None = None

    @property
    def suspect(self) -> bool:
        return self.strikes >= SUSPECT or self.crashes >= CRASHES

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Who is tried first: the lowest."""
        return self.killed, -self.crashes, self.tokens, self.number


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
        """Suspects that want to run."""
        self._tried: dict[Hashable, Case] = {}
        self._survived = 0
        """Rounds of trials since the last death."""
        self._seats = 1
        """How many more may join those who are tried now."""
        self._narrow = False
        """Whether it is one at a time until no suspect is left."""

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
            self._tried.pop(key, None)
            self._next_round()

    def ask(self, key: Hashable) -> None:
        """It wants to run again; suspects stand in line from now on."""
        case = self._cases[key]
        if case.suspect and key not in self._tried:
            self._line[key] = case

    def may_run(self, key: Hashable) -> bool:
        """Whether it may be sent now. What changes the answer for others is `leave`, `delivered` and `died`."""
        if key in self._tried:
            return True
        if self.trying:
            return False
        if not self._line:
            return not self._cases[key].suspect
        if self.first != key or (self._tried and self._line[key].killed):
            return False
        case = self._line.pop(key)
        self._tried[key] = case
        self._seats = 0 if case.killed else self._seats - 1  # those are tried alone
        return True

    @property
    def trying(self) -> bool:
        """Whether some are being tried, and all others have to wait."""
        return bool(self._tried) and (not self._seats or not self._line)

    @property
    def first(self) -> Hashable | None:
        """The suspect who is to be tried next; None: there is none, all may run."""
        return min(self._line, key=lambda key: self._line[key].rank, default=None)

    def began(self, key: Hashable, engine: Engine) -> None:
        """It was sent to an engine."""
        case = self._cases[key]
        case.engine = engine
        case.bare, case.proof = True, 0
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
        if case.engine is None:
            case.strikes = min(case.strikes, 1)
        else:
            case.strikes = 0
            case.proof += count
            if case.proof >= PROOF:
                case.crashes = 0
        if key not in self._tried or case.suspect:
            return False
        del self._tried[key]
        if not self._tried:
            self._survived += 1
        self._next_round()
        return True

    def excuse(self, key: Hashable) -> bool:
        """Its reader asks for no more meanwhile, so that it cannot prove anything: whether that ended a trial."""
        if self._tried.pop(key, None) is None:
            return False
        self._next_round()
        return True

    def is_tried(self, key: Hashable) -> bool:
        """Whether others wait for what becomes of it."""
        return key in self._tried

    def died(self, engine: Engine, death: EngineDeadError) -> bool:
        """An engine has died with everything that was on it; whether that was news."""
        lost = self._running.pop(engine, None)
        if lost is None:
            return False
        tried = [self._tried.pop(key) for key in lost if key in self._tried]
        self._narrow = self._narrow or len(tried) > 1
        self._seats, self._survived = 1, 0
        for case in lost.values():
            case.engine = None
            case.deaths.append(engine)
            case.strikes += 1
        if sent_by_others(death):
            self._judge_signal(list(lost.values()), tried, death)
        else:
            self._judge_crash(list(lost.values()), death, fresh=self._left.get(engine[0]) != engine)
        return True

    def verdict(self, key: Hashable) -> RequestFailedError | None:
        """The error of a convicted request: it must not run again."""
        return self._cases[key].verdict

    def _judge_crash(self, lost: list[Case], death: EngineDeadError, *, fresh: bool) -> None:
        """Weigh a crash that hit `lost`; the engine was `fresh` if no request had ended on it."""
        for case in self._cases.values():
            case.killed = 0
        for case in lost:
            case.crashes += 1
        if len(lost) == 1:
            accused = lost[0]
            accused.alone += 1
            if (fresh and accused.suspect) or accused.alone >= SUSPECT:
                accused.verdict = _verdict(accused, death)

    def _judge_signal(self, lost: list[Case], tried: list[Case], death: EngineDeadError) -> None:
        """Weigh a death that hit `lost`, and among them those who were `tried`, by a signal that anybody may send."""
        bare = [case for case in lost if case.bare]
        if len(bare) > 1 and not all(case in tried for case in bare):
            bare = []
        for case in self._cases.values():
            case.killed = case.killed + 1 if case in bare else 0
        if len(bare) == 1:
            accused = bare[0]
            if accused.killed >= PATIENCE + accused.recoveries and accused.strikes >= SURE:
                accused.verdict = _verdict(accused, death)

    def _next_round(self) -> None:
        """Let as many as may be tried at once come in, if nobody is tried any more."""
        if self._tried:
            return
        if not self._line:
            self._survived, self._narrow = 0, False
        self._seats = 1 if self._narrow else 2 ** max(0, self._survived + 1 - ALONE)

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
