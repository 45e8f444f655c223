"""Grammars are compiled on trial in a process apart, before the engine compiles them.

There are short ones that take for ever or all of the memory to compile, or with which the library overflows its stack.
No limit of the library holds these, and neither can a thread be stopped. A process can: such a grammar costs its
request, and a copy of a process that has everything ready. What a trial has survived, the engine can compile.

Invariants. A process serves one thread at a time; it ends when its standard input does, so with the engine at the
latest. It has no threads, and compiles nothing itself: each grammar gets a copy of it (a fork), which the kernel ends
after its time, and with it. It compiles for a vocabulary of bytes, which shows all that does not depend on the model's
tokens.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

import msgspec

from muro.core.grammar.spec import PARAM, GrammarSpec
from muro.errors import InvalidRequestError, RequestFailedError

TIME_LIMIT = 10.0
"""Seconds that a grammar may take on trial."""
MOMENT = 1.0
"""Seconds that it gets before it has to let others pass; nearly all take far less."""
START_LIMIT = 30.0
"""Seconds until a process is ready."""
MEMORY_LIMIT = 2 << 30
"""Bytes of address space that a process may have."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_GRACE = 5.0
"""Seconds beyond a grammar's time after which a process that says nothing is given up."""
_SURVIVED, _LATE, _DIED = b".", b"l", b"d"
_WHY = {_LATE: "takes more than {:g} s to compile", _DIED: "is more than the library can compile"}
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from muro.engines.trial import serve; serve()"


class Trials:
    """Tries grammars; a `workshop.Trial` for any number of threads, each of which gets a process of its own."""

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self._time_limit = time_limit
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def __call__(self, spec: GrammarSpec, patient: bool = True) -> bool:
        """Return if a compiler survives the grammar, whether it takes it or not.

        Gives false if it is not found out within a moment, unless `patient`: then it gets all its time.

        Raises:
            InvalidRequestError: it does not.
            RequestFailedError: no process can be started, or this is closed.
        """
        process = self._take()
        limit = self._time_limit if patient else min(self._time_limit, MOMENT)
        answer = b""
        try:
            process.wait_ready()
            answer = process.try_out(spec, limit)
        finally:
            with self._lock:
                self._busy.discard(process)
                closed = self._closed
                if answer and not closed:
                    self._idle.append(process)
            if not answer or closed:
                process.end()
        if closed:
            raise RequestFailedError("the engine ends")
        if answer == _LATE and not patient:
            return False
        if answer != _SURVIVED:
            why = _WHY.get(answer, "could not be tried").format(limit)
            raise InvalidRequestError(f"{PARAM}: the grammar {why}", param=PARAM)
        return True

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
        self._ready = self._ready or bool(self._answer(START_LIMIT))
        if not self._ready:
            raise RequestFailedError("the process that compiles grammars on trial does not come up")

    @property
    def lives(self) -> bool:
        return self._child.poll() is None

    def try_out(self, spec: GrammarSpec, limit: float) -> bytes:
        """Let it compile for `limit` seconds; what came of it, or nothing if the process is of no more use."""
        if self._child.stdin is None:
            return b""
        try:
            self._child.stdin.write(msgspec.json.encode((limit, spec)) + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError):
            return b""
        return self._answer(limit + _GRACE)

    def end(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _answer(self, seconds: float) -> bytes:
        """Wait for one byte; nothing if none comes."""
        out = self._child.stdout
        if out is None:
            return b""
        until = time.monotonic() + seconds
        try:
            poll = select.poll()
            poll.register(out, select.POLLIN)
            while (left := until - time.monotonic()) > 0:
                if poll.poll(1000 * left):
                    return out.read(1)
        except (OSError, ValueError):  # it was ended meanwhile
            return b""
        return b""


def serve() -> None:
    """What the process does: let a copy compile what comes, a line each, and answer with a byte what came of it."""
    from muro.core.grammar.library import Compiler
    from muro.engines.grammars import BYTES

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's business
    # What the library prints when it fails must not be taken for an answer.
    answers = os.dup(1)
    os.dup2(2, 1)
    compiler = Compiler(BYTES, len(BYTES))
    own = os.getpid()
    os.write(answers, _SURVIVED)
    for line in sys.stdin.buffer:
        seconds, spec = msgspec.json.decode(line, type=tuple[float, GrammarSpec])
        copy = os.fork()
        if copy == 0:
            try:
                _bound(seconds, own)
                with contextlib.suppress(Exception):
                    compiler.compile(spec)
            finally:
                os._exit(0)
        _, status = os.waitpid(copy, 0)
        late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        os.write(answers, _SURVIVED if status == 0 else _LATE if late else _DIED)


def _bound(seconds: float, parent: int) -> None:
    """Let the kernel end this process after its time, without memory, and with its parent (that on Linux alone)."""
    import resource

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
