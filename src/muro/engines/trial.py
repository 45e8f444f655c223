"""Grammars are compiled on trial in a process apart, before the engine compiles them.

There are short ones that take for ever or all of the memory to compile, or with which the library overflows its stack.
No limit of the library holds these, and neither can a thread be stopped. A process can: such a grammar costs its
request, and the process, which starts anew with the next grammar. What a trial has survived, the engine can compile.

Invariants. A process serves one thread at a time; it ends when its standard input does, so with the engine at the
latest. It compiles for a vocabulary of bytes, which shows all that does not depend on the model's tokens.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time

import msgspec

from muro.core.grammar.spec import PARAM, GrammarSpec
from muro.errors import InvalidRequestError, RequestFailedError

TIME_LIMIT = 10.0
"""Seconds that a grammar may take on trial."""
START_LIMIT = 30.0
"""Seconds until a process is ready."""
MEMORY_LIMIT = 2 << 30
"""Bytes of address space that a process may have."""

_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from muro.engines.trial import serve; serve()"


class Trials:
    """Tries grammars; a `workshop.Trial` for any number of threads, each of which gets a process of its own."""

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self._time_limit = time_limit
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def __call__(self, spec: GrammarSpec) -> None:
        """Return if a compiler survives the grammar, whether it takes it or not.

        Raises:
            InvalidRequestError: it does not.
            RequestFailedError: no process can be started, or this is closed.
        """
        process = self._take()
        why: str | None = "was not tried"
        try:
            process.wait_ready()
            why = process.try_out(spec, self._time_limit)
        finally:
            with self._lock:
                self._busy.discard(process)
                closed = self._closed
                if why is None and not closed:
                    self._idle.append(process)
            if why is not None or closed:
                process.end()
        if closed:
            raise RequestFailedError("the engine ends")
        if why is not None:
            raise InvalidRequestError(f"{PARAM}: the grammar {why}", param=PARAM)

    def close(self) -> None:
        """End the processes, also those at work."""
        with self._lock:
            self._closed = True
            processes = [*self._idle, *self._busy]
            self._idle.clear()
        for process in processes:
            process.end()

    def _take(self) -> _Process:
        """A process that lives; one that waits for work may have been killed from outside."""
        with self._lock:
            if self._closed:
                raise RequestFailedError("the engine ends")
            while self._idle and not self._idle[-1].lives:
                self._idle.pop().end()
            process = self._idle.pop() if self._idle else _start()
            self._busy.add(process)
            return process


def _start() -> _Process:
    """Start a process. Raises RequestFailedError."""
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path)]
    try:
        return _Process(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    except OSError as error:
        raise RequestFailedError(f"no process can be started to compile a grammar in: {error}") from None


class _Process:
    """A process that compiles, once it is ready. `end` may come from any thread at any time."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._ready = False

    def wait_ready(self) -> None:
        """Wait until it has come up. Raises RequestFailedError if it does not."""
        self._ready = self._ready or self._answered(START_LIMIT)
        if not self._ready:
            raise RequestFailedError("the process that compiles grammars on trial does not come up")

    @property
    def lives(self) -> bool:
        return self._child.poll() is None

    def try_out(self, spec: GrammarSpec, limit: float) -> str | None:
        """Compile; gives what became of the process, if it is of no more use."""
        if self._child.stdin is None:
            return "could not be tried"
        try:
            self._child.stdin.write(msgspec.json.encode(spec) + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError):
            return "could not be tried"
        if self._answered(limit):
            return None
        if self.lives:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.2)  # it may just be ending
        code = self._child.poll()
        return f"takes more than {limit:g} s to compile" if code is None else "is more than the library can compile"

    def end(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _answered(self, seconds: float) -> bool:
        """Wait for one byte."""
        out = self._child.stdout
        if out is None:
            return False
        until = time.monotonic() + seconds
        try:
            poll = select.poll()
            poll.register(out, select.POLLIN)
            while (left := until - time.monotonic()) > 0:
                if poll.poll(1000 * left):
                    return bool(out.read(1))
        except (OSError, ValueError):  # it was ended meanwhile
            return False
        return False


def serve() -> None:
    """What the process does: compile what comes, a line each, and answer with a byte whatever came of it."""
    import os
    import resource
    import signal

    from muro.core.grammar.library import Compiler
    from muro.engines.grammars import BYTES

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's business
    # What the library prints when it fails must not be taken for an answer.
    answers = os.dup(1)
    os.dup2(2, 1)
    compiler = Compiler(BYTES, len(BYTES))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.write(answers, b".")
    for line in sys.stdin.buffer:
        with contextlib.suppress(Exception):
            compiler.compile(msgspec.json.decode(line, type=GrammarSpec))
        os.write(answers, b".")
