"""The time that steps take: a model of their latency, the pace at which they follow each other, a clock to move."""

from __future__ import annotations

import random
from collections.abc import Callable

from muro.engines.sim.profile import Profile


class LatencyModel:
    """Seconds of a step, by what is in it.

    Args:
        profile: what things cost.
        seed: of the jitter, which comes alike each time.
    """

    def __init__(self, profile: Profile, seed: int) -> None:
        self._profile = profile
        self._random = random.Random(seed)

    def seconds(self, sequences: int, prompt_tokens: int, prompts_begun: int) -> float:
        """How long a step takes. Draws its jitter."""
        profile = self._profile
        spent = profile.step_us + profile.sequence_us * sequences
        spent += profile.prefill_us_per_token * prompt_tokens + profile.prefill_us_per_request * prompts_begun
        if profile.jitter:
            spent *= self._random.lognormvariate(0.0, profile.jitter)
        return spent * 1e-6


class Pace:
    """When steps end. While there is work, a step begins where the last one was due, not when the engine came to it.

    So the time between tokens is what was asked for, whatever scheduling costs, as long as the machine keeps up. Who is
    behind by more than a step does not hurry afterwards.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: float | None = None

    def due(self, seconds: float) -> float:
        """When a step that takes so long and begins now is over."""
        now = self._clock()
        begin = now if self._due is None or now - self._due > seconds else self._due
        self._due = begin + seconds
        return self._due

    def rest(self) -> None:
        """There is no more work: the next step begins when it begins."""
        self._due = None


class VirtualClock:
    """A clock that only moves when somebody sleeps by it.

    Args:
        now: where it begins.
    """

    def __init__(self, now: float) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
