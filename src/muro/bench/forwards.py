"""An echo engine whose steps contain a *forward*: a known piece of work that stands for a model, and a stopwatch.

What lies between the end of one forward and the beginning of the next is everything else: the engine's own
bookkeeping, the host, the loop, and whatever other threads do to them. `sleeping` waits, `releasing` computes
without the interpreter lock (as a native library does that lets go of it), `burning` computes in Python (lets go
when it is asked to), `holding` computes in one native call that never lets go.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import Literal

import msgspec

from muro.engine.interface import StepResult, TakeAborts, operation
from muro.engines.echo import EchoEngine
from muro.wire.request import EngineCoreRequest, SamplingParams

Kind = Literal["none", "sleeping", "burning", "releasing", "holding"]

_LOOKS = 5
_CALIBRATION = 0.05  # seconds spent per look at how much work fits into a step


class ForwardOptions(msgspec.Struct, frozen=True):
    """`step_ms`: length of a forward on an idle machine, in milliseconds."""

    kind: Kind = "none"
    step_ms: float = 10.0


class Times(msgspec.Struct):
    """Seconds, one entry per step: between two forwards, and from the beginning of one to that of the next."""

    gaps: list[float] = []
    periods: list[float] = []


class ForwardEngine(EchoEngine):
    """Echo with a forward in each step. Streams that start and end together give steady steps."""

    def __init__(self, forward: Callable[[], object]) -> None:
        super().__init__()
        self._forward = forward
        self._times = Times()
        self._began = self._ended = 0.0
        self._full = 0

    def step(self, take_aborts: TakeAborts) -> StepResult:
        steady = self._full == len(self._left)  # nobody came or went since the last forward
        self._full = len(self._left)
        start = perf_counter()
        if steady and self._ended:
            self._times.gaps.append(start - self._ended)
            self._times.periods.append(start - self._began)
        self._began = start
        self._forward()
        self._ended = perf_counter()
        result = super().step(take_aborts)
        if not self._left:
            self._ended = 0.0  # what follows is idleness
        return result

    @operation
    def take_times(self) -> Times:
        """What was measured since the last call."""
        times, self._times = self._times, Times()
        return times

    @operation
    def time_bare_forward(self, rounds: int) -> list[float]:
        """Seconds of each of some forwards with nothing in between."""
        times = []
        for _ in range(rounds):
            start = perf_counter()
            self._forward()
            times.append(perf_counter() - start)
        return times

    @operation
    def run_minimal_loop(self, streams: int, steps: int) -> Times:
        """The least that a loop can do, with an engine like this one: take, step, put; nothing else runs here."""
        engine = ForwardEngine(self._forward)
        inbox: SimpleQueue[EngineCoreRequest] = SimpleQueue()
        outbox: SimpleQueue[StepResult] = SimpleQueue()
        for number in range(streams):
            params = SamplingParams(max_tokens=steps)
            inbox.put(EngineCoreRequest(request_id=str(number), prompt_token_ids=[number], sampling_params=params))
        while not inbox.empty() or engine.has_work():
            while not inbox.empty():
                request = inbox.get_nowait()
                engine.add_request(request.request_id, request)
            outbox.put(engine.step(_no_aborts))
        return engine.take_times()


def create_engine(options: ForwardOptions) -> ForwardEngine:
    """The factory: `muro.bench.forwards:create_engine`."""
    return ForwardEngine(make_forward(options.kind, options.step_ms / 1000))


def make_forward(kind: Kind, seconds: float) -> Callable[[], object]:
    """A callable that takes about `seconds` on an idle machine: a fixed amount of work, or a sleep."""
    if kind == "none":
        return _nothing
    if kind == "sleeping":
        return lambda: time.sleep(seconds)
    if kind == "burning":
        turns = _fit(_burn, seconds, start=10_000)
        return lambda: _burn(turns)
    if kind == "holding":
        turns = _fit(_hold, seconds, start=10_000)
        return lambda: _hold(turns)
    size = _fit(lambda size: _release(bytes(size)), seconds, start=100_000)
    data = bytes(size)
    return lambda: _release(data)


def _no_aborts() -> list[str]:
    return []


def _nothing() -> None:
    pass


def _burn(turns: int) -> None:
    for _ in range(turns):
        pass


def _hold(turns: int) -> int:
    return sum(range(turns))


def _release(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _fit(work: Callable[[int], object], seconds: float, *, start: int) -> int:
    """The amount of work that takes `seconds`: the fastest of several looks counts, others were disturbed."""
    amount = start
    for _ in range(4):
        best, looks = float("inf"), 0
        until = perf_counter() + _CALIBRATION
        while perf_counter() < until or looks < _LOOKS:
            begin = perf_counter()
            work(amount)
            best, looks = min(best, perf_counter() - begin), looks + 1
        amount = max(1, round(amount * seconds / best))
    return amount
