"""Which fault is due: faults with conditions, and the counters that these are judged by.

A fault is written `[place:]kind[=argument][@condition,...]`; place and kind are those of `engines.faults`, and the
place `step` need not be said. Conditions, all of which must hold:

    time=S      S seconds have passed
    step=N      in the Nth step, or later
    request=N   after the Nth request came in
    prefill=N   in the step that begins to compute the Nth prompt, or later
    preemption=N    after the Nth time that a request had to give its cache back
    running=N   while a step has at least N sequences
    chance=P    with probability P, each time that its place is reached
    times=N     N times, then never again; 0: without an end. Without `times`: once

Time and numbers (not `running`) count from the moment when the fault was armed: when loading ended, or when it was
injected.

    hang                            block for ever in the next step
    step:sleep=0.5@step=100,times=20    twenty slow steps
    output:refuse@chance=0.01,times=0   one in a hundred outputs becomes an error
    idle:signal=SIGKILL@time=30     die after half a minute, whether or not there is work

Commits nothing: `engine.py` does. May be used from any thread.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping

import msgspec

from muro.engines.faults import KINDS, Fault, parse_fault
from muro.errors import ConfigError

IDLE = "idle"
"""The place that is reached whether or not there is work, on a thread of its own."""
EARLY = ("construct", "loading")
"""Places before counting begins."""
IDLE_KINDS = frozenset(KINDS) - {"raise", "refuse", "garble"}
"""What makes sense there: nobody would hear of an exception."""


class When(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The conditions of a fault; see the module."""

    time: float = 0.0
    step: int = 0
    request: int = 0
    prefill: int = 0
    preemption: int = 0
    running: int = 0
    chance: float = 1.0
    times: int = 1


NO_CONDITION = When()


class _Armed(msgspec.Struct):
    fault: Fault
    when: When
    left: int
    """How many times it may still come; below zero: without an end."""
    time: float = 0.0
    counts: tuple[int, ...] = ()
    """What `_COUNTED` stood at when it was armed."""


_COUNTED = ("step", "request", "prefill", "preemption")


def parse_scheduled(text: str) -> tuple[Fault, When]:
    """Read a fault with its conditions. Raises ConfigError."""
    what, at, conditions = text.partition("@")
    fault = parse_fault(what)
    pairs = dict(_pair(text, part) for part in conditions.split(",")) if at else {}
    return fault, parse_when(fault, pairs)


def parse_when(fault: Fault, conditions: Mapping[str, object]) -> When:
    """The conditions of a fault by name, checked. Raises ConfigError."""
    text = f"fault {spell(fault)}"
    try:
        when = msgspec.convert(conditions, When, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{text}: {error}; conditions are {', '.join(When.__struct_fields__)}") from None
    if when.times < 0 or when.time < 0 or not 0 < when.chance <= 1:
        raise ConfigError(f"{text}: times and time are not negative, and chance lies in 0 ... 1")
    if fault.place in EARLY and when != When(times=when.times):
        raise ConfigError(f"{text}: comes before there is anything to wait for; its only condition is times")
    if fault.place == IDLE and fault.kind not in IDLE_KINDS:
        raise ConfigError(f"{text}: what can be done there is {', '.join(sorted(IDLE_KINDS))}")
    if fault.place == IDLE and when != When(time=when.time):
        raise ConfigError(f"{text}: comes once, and its only condition is time")
    return when


def _pair(text: str, part: str) -> tuple[str, object]:
    name, equals, value = part.partition("=")
    if not equals:
        raise ConfigError(f"fault {text!r}: {part!r} is not of the form condition=value")
    return name.strip(), value.strip()


def spell(fault: Fault, when: When = NO_CONDITION) -> str:
    """As `parse_scheduled` reads it."""
    what = f"{fault.place}:{fault.kind}" + (f"={fault.argument}" if fault.argument else "")
    conditions = ",".join(f"{name}={value:g}" for name, value in msgspec.to_builtins(when).items())
    return f"{what}@{conditions}" if conditions else what


class FaultSchedule:
    """The faults that are armed.

    Args:
        clock: monotonic seconds.
        seed: for faults with a `chance`; None: another one each time.
        idle_clock: for faults that come without work; None: the same. A virtual clock does not move then.
    """

    def __init__(
        self, clock: Callable[[], float], seed: int | None = None, idle_clock: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock
        self._idle_clock = idle_clock or clock
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        self._steps = self._requests = self._prefills = self._preemptions = self._running = 0

    def arm(self, fault: Fault, when: When) -> None:
        """From now on it may come."""
        with self._lock:
            self._armed.append(self._counted(_Armed(fault, when, when.times or -1)))

    def loaded(self) -> None:
        """Count from now on."""
        with self._lock:
            self._armed = [self._counted(armed) for armed in self._armed]

    def step_begins(self, sequences: int, prompts_begun: int, preemptions: int) -> None:
        """Count a step of so many sequences; `preemptions` are all that there were so far."""
        self._steps += 1
        self._running = sequences
        self._prefills += prompts_begun
        self._preemptions = preemptions

    def work_ends(self) -> None:
        """There is no request left."""
        self._running = 0

    def request_comes(self) -> None:
        """Count a request."""
        self._requests += 1

    def waits_at(self, place: str) -> bool:
        """Whether a fault is armed for `place`."""
        return any(armed.fault.place == place for armed in self._armed)

    def due(self, place: str) -> list[Fault]:
        """What must be committed now that `place` is reached. Counts as committed."""
        if not self._armed:
            return []
        with self._lock:
            due = [armed for armed in self._armed if armed.fault.place == place and self._holds(armed)]
            for armed in due:
                armed.left -= 1
            self._armed = [armed for armed in self._armed if armed.left]
        return [armed.fault for armed in due]

    def next_idle(self) -> float | None:
        """In how many seconds the place `idle` is to be reached next; None: no fault waits there."""
        with self._lock:
            waits = [a.time + a.when.time - self._now(a.fault) for a in self._armed if a.fault.place == IDLE]
        return max(0.0, min(waits)) if waits else None

    def listed(self) -> list[str]:
        """What is armed, as it is written; `times` says how often it may still come."""
        with self._lock:
            return [spell(a.fault, msgspec.structs.replace(a.when, times=max(a.left, 0))) for a in self._armed]

    def clear(self) -> int:
        """Disarm everything; gives how many there were."""
        with self._lock:
            count, self._armed = len(self._armed), []
        return count

    def _counted(self, armed: _Armed) -> _Armed:
        return msgspec.structs.replace(armed, time=self._now(armed.fault), counts=self._counts())

    def _counts(self) -> tuple[int, ...]:
        return self._steps, self._requests, self._prefills, self._preemptions

    def _now(self, fault: Fault) -> float:
        return self._idle_clock() if fault.place == IDLE else self._clock()

    def _holds(self, armed: _Armed) -> bool:
        when = armed.when
        since = (now - then for now, then in zip(self._counts(), armed.counts, strict=True))
        return (
            self._now(armed.fault) - armed.time >= when.time
            and all(count >= getattr(when, name) for name, count in zip(_COUNTED, since, strict=True))
            and self._running >= when.running
            and (when.chance >= 1 or self._random.random() < when.chance)
        )
