"""What test children run: tiny targets for `launch.spawn`, each with one way to behave or misbehave."""

import ctypes
import json
import logging
import os
import queue
import signal
import subprocess
import sys
from typing import Any

from muro.child.context import ChildContext
from muro.child.signals import StopSignals
from muro.wire.failure import FailureRecord

TARGETS = "tests.support.children"


def return_code(context: ChildContext) -> int:
    return int(context.payload.get("code", 0))


def exit_hard(context: ChildContext) -> int:
    os._exit(int(context.payload["code"]))


def die_by(context: ChildContext) -> int:
    context.page.set_phase(context.payload.get("phase", "dying"), 40)
    print("last words", flush=True)
    os.kill(os.getpid(), int(context.payload["signal"]))
    return wait_for_signal(context)


def fault(context: ChildContext) -> int:
    """A real fault in native code."""
    return ctypes.string_at(0)[0]


def abort(context: ChildContext) -> int:
    os.abort()


def raise_error(context: ChildContext) -> int:
    raise RuntimeError(context.payload.get("message", "no such weights"))


def report_and_hang(context: ChildContext) -> int:
    """Fails in a telling way, then hangs in its clean-up."""
    context.report_failure(FailureRecord.of("loading", ValueError("bad block size")))
    return wait_for_signal(context)


def report_then_raise(context: ChildContext) -> int:
    context.report_failure(FailureRecord.of("loading", ValueError("the cause")))
    raise RuntimeError("a consequence")


def wait_for_signal(context: ChildContext) -> int:
    """Idle, interpreter lock released."""
    context.page.set_phase("waiting")
    while True:
        signal.pause()


def ignore_term(context: ChildContext) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return wait_for_signal(context)


def hold_lock(context: ChildContext) -> int:
    """Sits in native code that holds the interpreter lock."""
    context.page.set_phase("holding")
    native = ctypes.PyDLL(None)
    while True:  # a signal ends a sleep early
        native.sleep(600)


def stop_politely(context: ChildContext) -> int:
    """Leaves on SIGTERM, with the number of signals seen as its exit code."""
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()  # an Event's own lock may be held when the signal comes
    signals = StopSignals(lambda: asked.put(None))
    signals.install()
    context.page.set_phase("waiting")
    asked.get()
    signals.restore()
    return signals.count


def start_descendant(context: ChildContext) -> int:
    """Has a child of its own, whose pid is the last line of the log."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(process.pid, flush=True)
    if (code := context.payload.get("code")) is not None:
        return int(code)
    return wait_for_signal(context)


def write_natively(context: ChildContext) -> int:
    """Floods standard error past Python's streams."""
    line = b"x" * 99 + b"\n"
    for _ in range(int(context.payload["bytes"]) // 100_000):
        os.write(2, line * 1000)
    os.write(2, b"the end\n")
    return 0


def write_holding_lock(context: ChildContext) -> int:
    """The same from native code that never lets go of the interpreter lock."""
    piece = b"x" * 99 + b"\n"
    block = piece * 10_000
    library = ctypes.PyDLL(None)
    for _ in range(int(context.payload["bytes"]) // len(block)):
        library.write(2, block, len(block))
    return 0


def print_lines(context: ChildContext) -> int:
    for number in range(int(context.payload["lines"])):
        print(f"line {number} of a chatty engine, long enough to fill the ring before long")
    return 0


def log_and_end(context: ChildContext) -> int:
    logging.getLogger("tests.far").warning("from afar")
    return 0


def describe(context: ChildContext) -> int:
    """One line of JSON about this interpreter."""
    facts: dict[str, Any] = {
        "path": sys.path,
        "flags": {name: getattr(sys.flags, name) for name in context.payload["flags"]},
        "xoptions": sys._xoptions,
        "warnoptions": sys.warnoptions,
        "env": {name: os.environ.get(name) for name in context.payload.get("names", [])},
        "lent": context.config.lent,
        "descriptors": sorted(_descriptors()),
        "inheritable": [number for number, _ in _descriptors() if number > 2 and os.get_inheritable(number)],
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "group": os.getpgrp() == os.getpid(),
        "argv": sys.argv,
        "heavy": sorted({"zmq", "numpy"} & sys.modules.keys()),
    }
    print(json.dumps(facts))
    return 0


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # the one that listdir itself used
            continue
    return found
