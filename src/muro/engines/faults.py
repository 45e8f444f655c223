"""Every fault that an engine can be asked for, once: what it is, how it is written, how it is committed.

A fault is written `[place:]kind[=argument]`; the place `step` need not be said:

    place  construct, loading, preprocess, add, step, output, operation, shutdown,
           idle (whether or not there is work; the simulator only)
    kind   raise       raise an ordinary exception
           refuse      raise a RequestError that names its request
           signal=N    kill the process by signal N, or by name (SIGKILL if none is said, SIGSEGV, SIGABRT ...)
           exit=N      end the process with exit code N (1 if none is said), without any clean-up
           hang        block for ever in native code that lets go of the interpreter lock
           hang_lock   the same, holding it
           seize       let another thread take the interpreter lock, for ever
           spin        burn the processor for ever in Python
           barren      go on stepping, but put nothing out any more
           sleep=S     be slow: S seconds (1 if none is said)
           thread=NAME make the thread NAME die
           executor    report a failure of the executor
           garble      hand out an output that cannot be encoded

The kinds `barren`, `executor` and `garble` need the engine's help: a `Culprit` commits those as well.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from muro.engine.interface import FailureCallback
from muro.errors import ConfigError, InvalidRequestError
from muro.wire.output import EngineCoreOutput

PLACES = ("construct", "loading", "preprocess", "add", "step", "output", "operation", "shutdown", "idle")
KINDS = (
    "raise", "refuse", "signal", "exit", "hang", "hang_lock", "seize", "spin", "barren", "sleep", "thread", "executor",
    "garble",
)  # fmt: skip

SEIZED_AFTER = 0.2
"""Seconds until `seize` comes true, so that whoever asked for it can still answer."""


class FaultError(Exception):
    """The exception that a fault raises: not one of ours, like any error of an engine."""


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong, and where."""

    place: str
    kind: str
    argument: str = ""


def parse_fault(text: str) -> Fault:
    """Read `[place:]kind[=argument]`. Raises ConfigError that lists what there is."""
    place, colon, rest = text.partition(":") if text.partition("=")[0] not in KINDS else ("step", ":", text)
    kind, _, argument = rest.partition("=")
    if not colon:
        raise ConfigError(
            f"fault {text!r}: it is written [place:]kind[=argument]; the kind is one of {', '.join(KINDS)}; "
            f"the place is one of {', '.join(PLACES)}, and step if none is said"
        )
    if place not in PLACES:
        raise ConfigError(f"fault {text!r}: the place is one of {', '.join(PLACES)}")
    if kind not in KINDS:
        raise ConfigError(f"fault {text!r}: the kind is one of {', '.join(KINDS)}")
    if argument or kind == "thread":
        wanted, read = _ARGUMENTS.get(kind, _NO_ARGUMENT)
        try:
            read(argument)
        except (KeyError, ValueError):
            raise ConfigError(f"fault {text!r}: {kind}= takes {wanted}; found {argument!r}") from None
    return Fault(place, kind, argument)


def _signal(name: str) -> int:
    number = int(name) if name.isdigit() else signal.Signals[name or "SIGKILL"].value
    if number not in signal.valid_signals():
        raise ValueError(number)
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise ValueError
    return seconds


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _nothing(text: str) -> NoReturn:
    raise ValueError(text)


_ARGUMENTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "signal": ("a signal's number or name, such as SIGKILL", _signal),
    "exit": ("a number", int),
    "sleep": ("seconds", _seconds),
    "thread": ("a thread's name, such as muro-sender", _name),
}
"""What is known of an argument before its fault comes, and how it is read."""
_NO_ARGUMENT: tuple[str, Callable[[str], object]] = ("nothing", _nothing)


def commit(fault: Fault, request_id: str | None = None) -> None:
    """Do it. Returns only for `sleep`, `thread`, `seize`, and for what is left to the engine."""
    match fault.kind:
        case "raise":
            raise FaultError(f"a fault was asked for in {fault.place}")
        case "refuse":
            raise InvalidRequestError(f"a refusal was asked for in {fault.place}", request_id=request_id)
        case "signal":
            _die_by_signal(fault.argument)
        case "exit":
            os._exit(int(fault.argument or 1))
        case "hang":
            _deadlock(ctypes.CDLL(None))
        case "hang_lock":
            _deadlock(ctypes.PyDLL(None))
        case "seize":
            seizure = threading.Timer(SEIZED_AFTER, _deadlock, (ctypes.PyDLL(None),))
            seizure.daemon = True
            seizure.start()
        case "spin":
            while True:
                pass
        case "sleep":
            time.sleep(float(fault.argument or 1))
        case "thread":
            _end_thread(fault.argument)


class Culprit:
    """An engine's part in its own faults."""

    def __init__(self) -> None:
        self.executor_failed: FailureCallback | None = None
        """Where a failure of the executor is reported."""
        self.barren = False
        """Whether nothing is to be put out any more."""

    def commit(self, fault: Fault, request_id: str | None = None, output: EngineCoreOutput | None = None) -> None:
        """As `commit`, for every kind; `output` is what `garble` garbles."""
        match fault.kind:
            case "executor":
                if self.executor_failed is not None:
                    self.executor_failed(RuntimeError("the executor was asked to fail"))
            case "barren":
                self.barren = True
            case "garble":
                if output is not None:
                    output.kv_transfer_params = {"awkward": object()}
            case _:
                commit(fault, request_id)


def _die_by_signal(name: str) -> NoReturn:
    number = _signal(name)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    while True:  # the signal may be delivered to another thread first
        time.sleep(1)


def _deadlock(library: Any) -> None:
    """Lock a mutex twice: unlike a sleep, no signal ever ends it. PyDLL keeps the interpreter lock, CDLL does not."""
    mutex = ctypes.create_string_buffer(64)  # all zero: PTHREAD_MUTEX_INITIALIZER
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def _end_thread(name: str) -> None:
    """Raise SystemExit's twin inside another thread the next time that it runs Python code."""
    for thread in threading.enumerate():
        if thread.name == name and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(FaultError))
            return
    raise ConfigError(f"there is no thread {name!r}; there are: {', '.join(t.name for t in threading.enumerate())}")
