"""Compiles grammars away from the loop: a few threads, each grammar once, those used last kept.

Invariants. Threads start with the first grammar, and end with `close`; none holds the lock while it compiles. A
grammar that nobody waits for any more is not begun. A compilation is written by one thread, `matcher` or `error` last
of all, and only read after that. Whoever waits longer than `PATIENCE` gets an error: the library's own limits do
do not bound the time of every grammar, and a thread cannot be stopped. What must not be tried in this process at all,
since it would take for ever or crash, `Trial` finds out first. A grammar that takes longer than a moment there steps
back behind all others, and such ones never have all threads: hostile ones do not keep the others waiting.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from muro.core.grammar.library import Matcher
from muro.core.grammar.spec import GrammarSpec
from muro.errors import (
    ConfigError,
    InvalidRequestError,
    MuroError,
    RequestError,
    RequestFailedError,
    UnsupportedOptionError,
)

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that a request waits for its grammar; below the stall limit of a watchdog."""
KEPT = 64
"""Grammars that are kept when no request has them."""
THREADS = 4
SLOW_THREADS = 2
"""How many of them compile, at the same time, what takes longer than a moment."""
STACK_BYTES = 64 << 20
"""The library goes down into a grammar with the stack; what it does not need is never touched."""


class Compiles(Protocol):
    """A `library.Compiler`, or a stand-in."""

    def compile(self, spec: GrammarSpec) -> Matcher: ...


class Trial(Protocol):
    """Finds out in a safe place whether a grammar can be compiled at all. Called from several threads."""

    def __call__(self, spec: GrammarSpec, patient: bool) -> bool:
        """Return, whether it compiles or not; false if that takes longer than a moment, and nobody is `patient`.

        Raises RequestError if it must not be tried in this process.
        """
        ...

    def close(self) -> None:
        """Begin nothing more."""
        ...


class Compilation:
    """One grammar on its way. What requests wait for: a `Blocker` of `core/request.py`.

    Args:
        spec: what is compiled.
        clock: monotonic seconds.
    """

    phase = "grammar"

    def __init__(self, spec: GrammarSpec, clock: Callable[[], float]) -> None:
        self.spec = spec
        self._clock = clock
        self._until = clock() + PATIENCE
        self.matcher: Matcher | None = None
        self.error: Exception | None = None

    def over(self) -> bool:
        """Whether it is compiled. Raises RequestError if it cannot be, or takes too long."""
        if self.matcher is not None:
            return True
        error = self.error
        if isinstance(error, InvalidRequestError):
            raise type(error)(error.message, param=error.param)
        if isinstance(error, RequestError):
            raise RequestFailedError(error.message)
        if error is not None:
            raise RequestFailedError(f"the grammar could not be compiled: {error}")
        if self._clock() > self._until:
            raise RequestFailedError(f"the grammar was not compiled within {PATIENCE:g} s")
        return False

    def start(self) -> Matcher:
        """A matcher at the beginning, for one request."""
        if self.matcher is None:
            raise RequestFailedError("the grammar is not compiled")
        return self.matcher.copy()


class Workshop:
    """Makes compilations. `order` may be called from any thread.

    Args:
        make: gives the compiler; called once, in a thread, when the first grammar comes.
        clock: monotonic seconds.
        trial: see there; None: everything is tried here.
        missing: why nothing can be compiled, if that is known beforehand.
    """

    def __init__(
        self,
        make: Callable[[], Compiles],
        clock: Callable[[], float] = time.monotonic,
        trial: Trial | None = None,
        missing: str | None = None,
    ) -> None:
        self._make = make
        self._clock = clock
        self._trial = trial
        self._missing = missing
        self._lock = threading.Condition()
        self._making = threading.Lock()
        self._compiler: Compiles | None = None
        self._threads: list[threading.Thread] = []
        self._jobs: deque[weakref.ref[Compilation]] = deque()
        self._slow_jobs: deque[weakref.ref[Compilation]] = deque()
        self._num_slow = 0
        self._live: weakref.WeakValueDictionary[GrammarSpec, Compilation] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[GrammarSpec, Compilation] = OrderedDict()
        self._closed = False

    def order(self, spec: GrammarSpec) -> Compilation:
        """The compilation of a grammar, done or not. Raises UnsupportedOptionError if none can be compiled."""
        if self._missing is not None:
            raise UnsupportedOptionError(self._missing, param="structured_outputs")
        with self._lock:
            found = self._live.get(spec)
            if found is not None and found.error is None:
                if spec in self._kept:
                    self._kept.move_to_end(spec)
                return found
            made = self._live[spec] = Compilation(spec, self._clock)
            if not self._closed:
                self._start_threads()
                self._jobs.append(weakref.ref(made))
                self._lock.notify()
            return made

    def close(self) -> None:
        """Begin nothing more; a thread that compiles is left behind after a second."""
        with self._lock:
            self._closed = True
            self._kept.clear()
            threads, self._threads = self._threads, []
            self._lock.notify_all()
        if self._trial is not None:
            self._trial.close()
        for thread in threads:
            thread.join(1.0)

    def _start_threads(self) -> None:
        if self._threads:
            return
        before = threading.stack_size(STACK_BYTES)
        try:
            for number in range(THREADS):
                thread = threading.Thread(target=self._run, name=f"muro-grammar-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        finally:
            threading.stack_size(before)

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            job, slow = taken
            compilation = job()
            if compilation is not None:
                self._compile(compilation, patient=slow)
            del compilation
            if slow:
                with self._lock:
                    self._num_slow -= 1
                    self._lock.notify()

    def _take(self) -> tuple[weakref.ref[Compilation], bool] | None:
        """Wait for something to do, and whether it is known to be slow; None at the end."""
        with self._lock:
            while not self._closed:
                if self._jobs:
                    return self._jobs.popleft(), False
                if self._slow_jobs and self._num_slow < SLOW_THREADS:
                    self._num_slow += 1
                    return self._slow_jobs.popleft(), True
                self._lock.wait()
        return None

    def _compile(self, compilation: Compilation, *, patient: bool) -> None:
        try:
            if self._trial is not None and not self._trial(compilation.spec, patient):
                with self._lock:
                    self._slow_jobs.append(weakref.ref(compilation))
                    self._lock.notify()
                return
            matcher = self._ready_compiler().compile(compilation.spec)
        except Exception as error:
            if not isinstance(error, MuroError):
                log.exception("a grammar could not be compiled")
            compilation.error = error
            return
        with self._lock:
            self._kept[compilation.spec] = compilation
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        compilation.matcher = matcher

    def _ready_compiler(self) -> Compiles:
        with self._making:
            if self._compiler is None:
                try:
                    self._compiler = self._make()
                except ConfigError as error:
                    raise UnsupportedOptionError(
                        f"structured output is not supported by this engine: {error.message}",
                        param="structured_outputs",
                    ) from None
            return self._compiler
