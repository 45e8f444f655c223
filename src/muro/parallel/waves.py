"""Waves: how lockstep ranks start and stop together (protocol section 15.4). Three machines, as tables.

While a wave runs, all ranks step together; when none has work, all pause, and the next wave has the next number. Each
side knows a wave number and whether it runs; messages between them come late, in any order, or twice.

Two rules exist, and front-ends and coordinators of both get along with these machines. Up to 0.32 a front-end that
believes that the engines pause tells the coordinator of its request (`Rule.FRONT_END_NOTIFIES`); from 0.33 on the
engine that gets it says so (`Rule.ENGINES_START`). An engine here always says so.

Where these machines do more than vLLM's, it is so that nobody is left asleep while others run:

- An engine starts whenever it *has* work and does not run, not when a request arrives: requests come to life later,
  too (a pause that ends), and some never do (refused, aborted).
- It does not care for `exclude`. Who is excluded is expected to start by itself and may not (see above), and a start
  of a wave that one has not run yet never does harm.
- The coordinator repeats a start for everybody who says that it has started, even if the wave runs already, and
  answers a number of the past with its own: whoever says so may know less than it, or more.
- To a coordinator that is new, engines that run say again that they do; and to one that starts a wave which is over,
  rank 0 says again that it is.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from muro.ids import EngineRank
from muro.wire.control import StartDPWave
from muro.wire.coordination import MAX_WAVE, FirstRequest, Publication

MAX_STATED_WAVE: Final = 1 << 48
"""Waves that a front-end states are believed up to here, any other up to `MAX_WAVE`; no honest one gets there."""


class Rule(enum.Enum):
    """Who says that a wave must start."""

    FRONT_END_NOTIFIES = "front-end notifies"
    """0.25 to 0.32."""
    ENGINES_START = "engines start"
    """0.33 and later."""


def rule_of(minor: int) -> Rule:
    """The rule of the coordinators of release 0.`minor`."""
    return Rule.FRONT_END_NOTIFIES if minor < 33 else Rule.ENGINES_START


# --- An engine ---------------------------------------------------------------------------------------------------


class EngineEvent(enum.Enum):
    """What an engine meets."""

    WORK = "it has work"
    START = "START_DP_WAVE"
    START_OF_THE_PAST = "START_DP_WAVE of a wave that is over"
    PEERS_STEP = "another rank asks for agreement"
    ALL_IDLE = "agreed that nobody has work"
    COORDINATOR_UP = "READY from the coordinator"


class Says(enum.Enum):
    """What an engine tells the coordinator. The end of a wave is for rank 0 to tell."""

    START_WAVE = "start_wave"
    WAVE_COMPLETE = "wave_complete"


class Word(msgspec.Struct, frozen=True):
    """A message of an engine about a wave."""

    says: Says
    wave: int


ENGINE: Final[dict[tuple[bool, EngineEvent], tuple[bool, Says | None]]] = {
    (False, EngineEvent.WORK): (True, Says.START_WAVE),
    (False, EngineEvent.START): (True, None),
    (False, EngineEvent.START_OF_THE_PAST): (False, Says.WAVE_COMPLETE),
    (False, EngineEvent.PEERS_STEP): (True, None),
    (False, EngineEvent.COORDINATOR_UP): (False, None),
    (True, EngineEvent.WORK): (True, None),
    (True, EngineEvent.START): (True, None),
    (True, EngineEvent.START_OF_THE_PAST): (True, None),
    (True, EngineEvent.PEERS_STEP): (True, None),
    (True, EngineEvent.ALL_IDLE): (False, Says.WAVE_COMPLETE),
    (True, EngineEvent.COORDINATOR_UP): (True, Says.START_WAVE),
}
"""(runs, event) -> (runs then, what it says)."""


class EngineWave:
    """The wave as one engine sees it.

    Args:
        interval: steps from one agreement of the ranks to the next; all ranks have the same.
    """

    def __init__(self, interval: int = 32) -> None:
        self._interval = interval
        self.wave = 0
        self.running = False
        self.steps = 0
        """Steps of this wave so far."""
        self._stated = 0

    def request_states(self, wave: int) -> None:
        """A request carries this number; should it be the one that starts a wave, then at least this one."""
        if self._stated < wave <= MAX_STATED_WAVE:
            self._stated = wave

    def has_work(self) -> Word | None:
        """There is a request to compute."""
        if not self.running:
            self.wave = max(self.wave, self._stated)
        return self._meets(EngineEvent.WORK)

    def told_to_start(self, wave: int) -> Word | None:
        """START_DP_WAVE came."""
        if wave > MAX_WAVE:
            return None
        if wave < self.wave:
            said = self._meets(EngineEvent.START_OF_THE_PAST)
            return said and Word(said.says, self.wave - 1)
        self.wave = wave
        return self._meets(EngineEvent.START)

    def peers_step(self) -> Word | None:
        """Another rank waits for this one: a wave runs that nobody told us of."""
        return self._meets(EngineEvent.PEERS_STEP)

    def stepped(self) -> bool:
        """A step was done, with work or without; whether the ranks agree now: after the first, then every interval."""
        self.steps += 1
        return self.steps == 1 or self.steps % self._interval == 0

    def all_idle(self) -> Word | None:
        """The ranks agreed that nobody has work."""
        said = self._meets(EngineEvent.ALL_IDLE)
        self.wave += 1
        self.steps = 0
        return said

    def coordinator_up(self) -> Word | None:
        """A coordinator has said READY, perhaps a new one that knows nothing. Changes nothing: any thread may ask."""
        _, says = ENGINE[self.running, EngineEvent.COORDINATOR_UP]
        return None if says is None else Word(says, self.wave)

    def _meets(self, event: EngineEvent) -> Word | None:
        self.running, says = ENGINE[self.running, event]
        return None if says is None else Word(says, self.wave)


# --- The coordinator ---------------------------------------------------------------------------------------------


class CoordinatorEvent(enum.Enum):
    """What the coordinator hears."""

    ENGINE_STARTED = "start_wave"
    FIRST_REQUEST = "notice of a front-end"
    WAVE_COMPLETE = "wave_complete"


class Age(enum.Enum):
    """The number in a message, beside one's own."""

    OLDER = "older"
    SAME = "same"
    NEWER = "newer"


class Number(enum.Enum):
    """What becomes of one's own."""

    KEEP = "keep"
    TAKE = "take"
    NEXT = "the one after it"


class Who(enum.Enum):
    """Who is told to start."""

    NOBODY = "nobody"
    OTHERS = "all but who said it"
    ALL = "all"


class Effect(msgspec.Struct, frozen=True):
    """What follows: (whether the wave runs, its number, who is told, whether front-ends are)."""

    runs: bool
    number: Number = Number.KEEP
    start: Who = Who.NOBODY
    publish: bool = False


_E, _A, _N, _W = CoordinatorEvent, Age, Number, Who
_IGNORED_PAUSED, _IGNORED_RUNNING = Effect(False), Effect(True)

COORDINATOR: Final[dict[tuple[bool, CoordinatorEvent, Age], Effect]] = {
    (False, _E.ENGINE_STARTED, _A.OLDER): Effect(True, _N.KEEP, _W.ALL, True),
    (False, _E.ENGINE_STARTED, _A.SAME): Effect(True, _N.KEEP, _W.OTHERS, True),
    (False, _E.ENGINE_STARTED, _A.NEWER): Effect(True, _N.TAKE, _W.OTHERS, True),
    (True, _E.ENGINE_STARTED, _A.OLDER): Effect(True, _N.KEEP, _W.ALL, False),
    (True, _E.ENGINE_STARTED, _A.SAME): Effect(True, _N.KEEP, _W.OTHERS, False),
    (True, _E.ENGINE_STARTED, _A.NEWER): Effect(True, _N.TAKE, _W.OTHERS, True),
    (False, _E.FIRST_REQUEST, _A.OLDER): Effect(True, _N.KEEP, _W.ALL, True),
    (False, _E.FIRST_REQUEST, _A.SAME): Effect(True, _N.KEEP, _W.OTHERS, True),
    (False, _E.FIRST_REQUEST, _A.NEWER): Effect(True, _N.TAKE, _W.OTHERS, True),
    (True, _E.FIRST_REQUEST, _A.OLDER): _IGNORED_RUNNING,
    (True, _E.FIRST_REQUEST, _A.SAME): _IGNORED_RUNNING,
    (True, _E.FIRST_REQUEST, _A.NEWER): _IGNORED_RUNNING,
    (False, _E.WAVE_COMPLETE, _A.OLDER): _IGNORED_PAUSED,
    (False, _E.WAVE_COMPLETE, _A.SAME): Effect(False, _N.NEXT, _W.NOBODY, True),
    (False, _E.WAVE_COMPLETE, _A.NEWER): Effect(False, _N.NEXT, _W.NOBODY, True),
    (True, _E.WAVE_COMPLETE, _A.OLDER): _IGNORED_RUNNING,
    (True, _E.WAVE_COMPLETE, _A.SAME): Effect(False, _N.NEXT, _W.NOBODY, True),
    (True, _E.WAVE_COMPLETE, _A.NEWER): Effect(False, _N.NEXT, _W.NOBODY, True),
}
"""(runs, event, age of its number) -> effect."""


class Orders(msgspec.Struct, frozen=True):
    """What the coordinator sends: to all engines, and to all front-ends."""

    start: StartDPWave | None = None
    news: Publication | None = None


class CoordinatorWave:
    """The wave as the coordinator sees it."""

    def __init__(self) -> None:
        self.wave = 0
        self.running = False

    def engine_started(self, rank: int, wave: int) -> Orders:
        """`start_wave` of an engine."""
        return self._meets(CoordinatorEvent.ENGINE_STARTED, wave, rank)

    def first_request(self, notice: FirstRequest) -> Orders:
        """A front-end of up to 0.32 has sent a request to `exclude`, and believes that the engines pause."""
        if not 0 <= notice.wave <= MAX_STATED_WAVE:
            return Orders()
        return self._meets(CoordinatorEvent.FIRST_REQUEST, notice.wave, notice.exclude)

    def wave_complete(self, wave: int) -> Orders:
        """Rank 0 says that a wave has ended."""
        return self._meets(CoordinatorEvent.WAVE_COMPLETE, wave, None)

    def engines_gone(self) -> Orders:
        """No engine is left, so nothing runs; those who come next may be new, and know no number."""
        was, self.running = self.running, False
        return Orders(news=Publication(None, self.wave, False)) if was else Orders()

    def _meets(self, event: CoordinatorEvent, wave: int, exclude: int | bytes | None) -> Orders:
        if not 0 <= wave <= MAX_WAVE:
            return Orders()
        age = Age.OLDER if wave < self.wave else Age.SAME if wave == self.wave else Age.NEWER
        effect = COORDINATOR[self.running, event, age]
        self.running = effect.runs
        self.wave = {Number.KEEP: self.wave, Number.TAKE: wave, Number.NEXT: wave + 1}[effect.number]
        start = None
        if effect.start is not Who.NOBODY:
            start = StartDPWave(self.wave, exclude if effect.start is Who.OTHERS else None)
        return Orders(start, Publication(None, self.wave, self.running) if effect.publish else None)


# --- A front-end -------------------------------------------------------------------------------------------------


FRONT_END: Final[dict[tuple[Rule, bool], tuple[bool, bool]]] = {
    (Rule.FRONT_END_NOTIFIES, False): (True, True),
    (Rule.FRONT_END_NOTIFIES, True): (True, False),
    (Rule.ENGINES_START, False): (False, False),
    (Rule.ENGINES_START, True): (True, False),
}
"""A request is sent: (rule, believed to run) -> (believed to run then, whether the coordinator is told)."""


class FrontEndWave:
    """The wave as one front-end believes it to be: what its requests state, and whether it tells of them.

    Args:
        rule: that of the *coordinator*; see `rule_of`.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.wave = 0
        self.running = False

    def sends_request(self, rank: EngineRank) -> FirstRequest | None:
        """A request that states `wave` goes to an engine; gives what the coordinator must be told."""
        self.running, tells = FRONT_END[self._rule, self.running]
        return FirstRequest(rank, self.wave) if tells else None

    def hears(self, news: Publication) -> None:
        """The coordinator has published."""
        self.wave, self.running = news.wave, news.running
