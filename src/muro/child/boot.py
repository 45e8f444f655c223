"""First code of a child process; run by file path: ``python -P boot.py module:function ... --config-fd N``.

Reads the configuration, takes over the parent's import path, posts the warden, arms the life-line, and only then
imports the target and calls it with a `ChildContext`. The target's return value is the exit code. The words between
target and ``--config-fd`` are for people who look at the process list.

Does not import the caller's main module, and handles no signal: until the target installs `StopSignals`,
SIGTERM and SIGINT do what they do by default.

Invariants:
- Before the warden is posted and the life-line armed nothing is imported but the standard library, and there is
  one thread: so a fork is safe, and small.
- Whatever ends the target early leaves a failure record, even if muro itself cannot be imported. The record
  is therefore plain JSON, written here with the standard library alone (see `wire.failure.FailureRecord`).
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

ENGINE_FAILED = 10  # as in wire.failure.ExitCode, which cannot be imported before sys.path is there
STARTUP_FAILED = 11
RECORD_CHARS = 4096  # a record has at most 64 KiB, and a character up to 6 bytes as JSON


def main() -> int:
    """Run the child from its first to its last line; returns the exit code."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a mask is inherited from the thread that spawned us
    config = _read_config(int(sys.argv[-1]))
    phase = "boot"
    try:
        sys.path[:] = config["sys_path"]
        guarded = _post_warden(config)
        from muro.child.lifeline import arm

        arm(config["lifeline_fd"], config["parent_pid"], guarded)
        from muro.child.context import open_context
        from muro.child.logring import LogRing
        from muro.child.logs import configure

        ring = LogRing(config["log_fd"])
        ring.take_standard_streams()
        ring.watch()
        faulthandler.enable(all_threads=False)  # last words of a native crash; the log's tail holds one thread
        faulthandler.register(signal.SIGQUIT, chain=False)  # the parent may ask where we stand; main thread comes last
        context = open_context(config)
        configure(context.config.records_fd, context.config.thresholds, context.config.name)
        target = _load(config["target"])
        phase = ""
        return int(target(context) or 0)
    except Exception as error:
        traceback.print_exc()
        _leave_record(config["failure_fd"], phase, error)
        return STARTUP_FAILED if phase else ENGINE_FAILED
    finally:
        gc.freeze()  # else the interpreter looks for cycles in all that it is about to drop


def _read_config(descriptor: int) -> dict[str, Any]:
    with open(descriptor, "rb") as file:
        file.seek(0)
        config: dict[str, Any] = json.load(file)
    for name, value in config.items():
        if name.endswith("_fd"):
            os.set_inheritable(value, False)  # ours alone, not for programs that the engine starts
    for value in config["lent"].values():
        os.set_inheritable(value, False)
    return config


def _post_warden(config: dict[str, Any]) -> bool:
    from muro.child.warden import can_sweep, post

    try:
        post(config["tree"], config["parent_pid"], config["lifeline_fd"], config["report_fd"])
    except OSError as error:  # no process can be made; then the parent looks for what we leave
        sys.stderr.write(f"no warden could be posted: {error}\n")
        return False
    return can_sweep()


def _load(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)


def _leave_record(descriptor: int, phase: str, error: BaseException) -> None:
    if os.fstat(descriptor).st_size:
        return  # the target has told more precisely
    text = "".join(traceback.format_exception(error))
    record = {
        "phase": phase,
        "kind": type(error).__qualname__[:64],
        "message": _encodable(_words(error))[:RECORD_CHARS],
        "traceback": _encodable(text)[-RECORD_CHARS:],
        "code": getattr(error, "code", ""),
    }
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, json.dumps(record).encode(), 0)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it cannot be put into words)"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # file names may hold lone surrogates


if __name__ == "__main__":
    sys.exit(main())
