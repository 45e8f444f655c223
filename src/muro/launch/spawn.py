"""Start a child process and hold it: a fresh interpreter, never a fork of this one.

The child runs `child/boot.py` by its path, which calls a function given by its dotted name. Nothing of the
caller's main module is imported, so scripts need no main guard. `Child` is the parent's handle: it answers
whether the process lives, stops it, and tells afterwards why it ended.

Linux only: a child is watched through a pidfd, and what is shared with it are memory files.

Invariants:
- Besides the standard three, and those that are lent to it, exactly seven descriptors go to the child. This process
  keeps its own ends of six (life-line, failure record, progress page, log, log records, the warden's report) and a
  pidfd; `Child.close` closes all of them.
- The write end of the life-line exists in this process alone: it is close-on-exec, and forks made by Python
  close it. When it closes, the kernel kills the child.
- The child is reaped here and nowhere else, under the handle's lock. Its warden kills what it has started, and
  `Child.close` waits for that. If it has none, its group is killed before it is reaped: later the id may be another's.
- A handle that was copied into a forked process does nothing there.
- The parent's signal handling is never touched; all of this works in any thread and at interpreter exit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

import muro.child
from muro.child.context import ChildConfig, read_failure
from muro.child.logring import create_log, read_new, read_tail
from muro.config import child_environment
from muro.errors import ConfigError, StartupError
from muro.launch.death import UNKNOWN_STATUS, Death
from muro.launch.descriptors import avoid_standard, memory_file
from muro.launch.interpreter import executable, import_path, interpreter_arguments
from muro.launch.logs import LogReader, Take
from muro.launch.stopped import is_stopped
from muro.launch.tree import Tree
from muro.observe.log import Thresholds
from muro.transport.page import ProgressPage
from muro.wire.failure import FailureRecord
from muro.wire.progress import Progress

_REAP_TIMEOUT = 5.0
_DUMP_TIMEOUT = 0.5
_DUMP_STEP = 0.02
_FIRST_PHASE = "interpreter"
"""Shown until the child says otherwise: Python itself is starting."""

_lifelines: set[int] = set()


def _after_fork() -> None:
    for descriptor in _lifelines:
        os.close(descriptor)
    _lifelines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def spawn(
    target: str,
    payload: Mapping[str, Any],
    *,
    title: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    name: str = "",
    generation: int = 0,
    lent: Mapping[str, int] | None = None,
    thresholds: Thresholds | None = None,
    take_record: Take | None = None,
) -> Child:
    """Start a process that calls `target`.

    Args:
        target: "module:function", called with a `ChildContext`; what it returns is the exit code.
        payload: settings for the target; plain JSON values.
        title: words for people who look at the process list.
        env: added to this process's environment.
        name: what to call the child in messages.
        generation: written into the progress page.
        lent: descriptors of this process that the child inherits, by the names under which it finds them.
        thresholds: which log records are wanted; None: those that this process would show.
        take_record: takes them; None: they are logged here.

    Raises:
        ConfigError: this platform, interpreter or payload will not do.
        StartupError: the operating system refused to start a process.
    """
    if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
        raise ConfigError("engines in a process of their own need Linux; elsewhere use InprocClient")
    name = name or target
    try:
        environment = child_environment(env or {})
        return _spawn(_How(target, payload, title, environment, name, generation, lent or {}, thresholds, take_record))
    except (OSError, RuntimeError) as error:
        raise StartupError(f"{name} did not start: no process could be made for it: {error}", phase="spawn") from error


class _How(NamedTuple):
    """The arguments of `spawn`."""

    target: str
    payload: Mapping[str, Any]
    title: Sequence[str]
    env: dict[str, str]
    name: str
    generation: int
    lends: Mapping[str, int]
    thresholds: Thresholds | None
    take_record: Take | None


def _spawn(how: _How) -> Child:
    with contextlib.ExitStack() as lent, contextlib.ExitStack() as kept:
        avoid_standard(lent)
        parts = _Parts.open(kept, how)
        lifeline_read, parts.lifeline = _lifeline(lent, kept)
        report_write = parts.tree.lend(lent)
        records = parts.logs.open(lent)
        config = ChildConfig(
            target=how.target,
            name=how.name,
            parent_pid=os.getpid(),
            lifeline_fd=lifeline_read,
            failure_fd=parts.failure,
            page_fd=parts.page.fileno(),
            log_fd=parts.log,
            records_fd=records,
            thresholds=how.thresholds or Thresholds.now(),
            report_fd=report_write,
            tree=parts.tree.token,
            sys_path=import_path(),
            payload=dict(how.payload),
            lent=dict(how.lends),
        )
        config_fd = memory_file(lent, "muro-config", _json(config))
        shared = (config_fd, lifeline_read, report_write, records, parts.failure, parts.page.fileno(), parts.log)
        boot = os.path.join(os.path.dirname(muro.child.__file__), "boot.py")
        process = subprocess.Popen(
            [executable(), *interpreter_arguments(), "-P", boot, how.target, *how.title, "--config-fd", str(config_fd)],
            stdin=subprocess.DEVNULL,
            stdout=parts.log,
            stderr=parts.log,
            pass_fds=(*shared, *how.lends.values()),
            env=how.env | parts.tree.environment(),
            process_group=0,  # Ctrl-C on the terminal reaches the parent first, which then decides
        )
        kept.callback(_kill_unheld, process)
        child = Child(how.name, process, os.pidfd_open(process.pid), parts)
        kept.pop_all()
        return child


class _Parts:
    """What this process keeps of a child's descriptors."""

    def __init__(self, how: _How, page: ProgressPage, failure: int, log: int, tree: Tree) -> None:
        self.page = page
        self.failure = failure
        self.log = log
        self.logs = LogReader(how.name, log, how.take_record)
        self.tree = tree
        self.lifeline = -1

    @classmethod
    def open(cls, kept: contextlib.ExitStack, how: _How) -> _Parts:
        page = ProgressPage.create(generation=how.generation)
        kept.callback(page.close)
        page.set_phase(_FIRST_PHASE)
        log = create_log()
        kept.callback(os.close, log)
        tree = Tree()
        kept.callback(tree.close)
        return cls(how, page, memory_file(kept, "muro-failure", b""), log, tree)

    def close(self) -> None:
        _close_lifeline(self.lifeline)
        self.tree.close()
        self.page.close()
        os.close(self.failure)
        os.close(self.log)


class Child:
    """A child process, seen from its parent; made by `spawn`. Any thread may use it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], pidfd: int, parts: _Parts) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._pidfd = pidfd
        self._parts = parts
        self._owner = os.getpid()
        self._born = time.monotonic()
        self._status: int | None = None
        self._ended = 0.0
        self._closed = False
        self._waiting = 0
        self._log_seen = 0
        self._lock = threading.RLock()

    @property
    def sentinel(self) -> int:
        """Descriptor that turns readable when the child has ended; -1 after `close`."""
        return -1 if self._closed else self._pidfd

    def poll(self) -> int | None:
        """Exit code, or minus the number of the signal that ended it; None while it lives. Reaps."""
        with self._lock:
            if self._status is None and self._mine() and _readable(self._pidfd, 0):
                if not self._parts.tree.is_guarded():
                    self._kill_group()
                self._status = self._process.returncode = self._collect()
                self._ended = time.monotonic()
            return self._status

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended, after waiting at most `timeout` seconds for it (None: as long as it takes)."""
        with self._lock:
            if self.poll() is not None or not self._mine():
                return True
            self._waiting += 1  # so that the descriptor stays ours even if another thread closes the handle
        try:
            _readable(self._pidfd, timeout)
        finally:
            with self._lock:
                self._waiting -= 1
                self._let_go()
        return self.poll() is not None

    def terminate(self) -> None:
        """Ask it to stop: SIGTERM to the child alone, and SIGCONT, lest it be stopped and never hear of it."""
        with self._lock:
            if self.poll() is None and self._mine():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
                    signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL); its warden ends what it has started."""
        with self._lock:
            if self.poll() is None and self._mine():
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # it has not been reaped: there is somebody
                if not self._parts.tree.is_guarded():
                    self._kill_group()

    def _kill_group(self) -> None:
        """What it has started, where no warden sees to that. The child must not have been reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Whether the operating system says that it is stopped by a signal."""
        return is_stopped(self.pid)

    def failure(self) -> FailureRecord | None:
        """The failure that it has reported, if any; may come before it ends."""
        with self._lock:
            return None if self._closed else read_failure(self._parts.failure)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that it wrote to standard output and error."""
        with self._lock:
            return "" if self._closed else read_tail(self._parts.log, lines)

    def new_log(self) -> str:
        """What it wrote since the last call, to be shown to people; incomplete if that was several laps ago."""
        with self._lock:
            if self._closed:
                return ""
            text, self._log_seen = read_new(self._parts.log, self._log_seen)
            return text

    def dump_stack(self) -> str:
        """Let it write into its log where its threads stand, even while it holds the interpreter lock.

        Returns what it wrote when that is done, or it has ended, or after `_DUMP_TIMEOUT` seconds; nothing if the
        process is stopped. The handle can be used meanwhile.
        """
        with self._lock:
            if self.poll() is not None or not self._mine() or is_stopped(self.pid):
                return ""
            _, before = read_new(self._parts.log, self._log_seen)
            signal.pidfd_send_signal(self._pidfd, signal.SIGQUIT)
        deadline = time.monotonic() + _DUMP_TIMEOUT
        written = ""
        while True:  # a dump is many lines, each written by itself
            over = self.wait(_DUMP_STEP) or time.monotonic() > deadline
            with self._lock:
                now = written if self._closed else read_new(self._parts.log, before)[0]
            if over or (now and now == written):
                return now
            written = now

    def progress(self) -> Progress:
        """What its progress page shows."""
        with self._lock:
            return Progress() if self._closed else self._parts.page.read()

    def death(self) -> Death:
        """How it ended, as far as known; ask before `close`."""
        with self._lock:
            status, failure = self.poll(), self.failure()
            ended = self._ended if status is not None else time.monotonic()
            return Death(
                name=self.name,
                pid=self.pid,
                status=status,
                phase=(failure.phase if failure else "") or self.progress().phase or _FIRST_PHASE,
                seconds=ended - self._born,
                failure=failure,
                log_tail=self.log_tail(),
            )

    def close(self) -> None:
        """End it and all that it has started, reap it, close all descriptors. May be called again, and never raises."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            self.kill()
            if self.wait(_REAP_TIMEOUT):
                self._parts.tree.clear()
                self._parts.logs.close()
            self._closed = True
            self._parts.close()
            self._let_go()

    def _let_go(self) -> None:
        if self._closed and not self._waiting and self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _mine(self) -> bool:
        return not self._closed and os.getpid() == self._owner

    def _collect(self) -> int:
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:  # SIGCHLD is ignored in this program, or somebody waits for any child
            return UNKNOWN_STATUS
        if result is None:
            return UNKNOWN_STATUS
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def __repr__(self) -> str:
        return f"<Child {self.name!r}, pid {self.pid}, status {self._status}>"


def kill_all() -> None:
    """End all children of this process, whatever it is doing; may be called in a signal handler.

    It cuts their life-lines. For a program that ends: what is started meanwhile is not killed.
    """
    for descriptor in list(_lifelines):
        _close_lifeline(descriptor)


def _kill_unheld(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _json(config: ChildConfig) -> bytes:
    try:
        thresholds = msgspec.to_builtins(config.thresholds)
        return json.dumps(msgspec.structs.asdict(config) | {"thresholds": thresholds}).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings of {config.name} must be plain JSON values: {error}") from error


def _lifeline(lent: contextlib.ExitStack, kept: contextlib.ExitStack) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    _lifelines.add(write_end)
    lent.callback(os.close, read_end)
    kept.callback(_close_lifeline, write_end)
    return read_end, write_end


def _close_lifeline(descriptor: int) -> None:
    if descriptor in _lifelines:
        _lifelines.discard(descriptor)
        os.close(descriptor)


def _readable(descriptor: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
