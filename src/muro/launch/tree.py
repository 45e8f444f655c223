"""The parent's side of a child's tree: gives it its token, and waits until nothing of it is left.

The work is done by the tree's warden (see `child.warden`). If that has been killed or stopped, the parent does
it itself. Processes of the tree that have become ours, because this program is the first of its container or a
subreaper, are reaped by their ids, so that nobody else's exit status is ever taken.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

from muro.child.warden import SWEEP_TIMEOUT, TREE, can_sweep, read_report, sweep

_REAP_TIMEOUT = 1.0
_REPORT_BYTES = 4096


class Tree:
    """What one child has started and will start."""

    def __init__(self) -> None:
        self.token = os.urandom(8).hex()
        self._report = -1

    def lend(self, lent: contextlib.ExitStack) -> int:
        """The pipe's end for the child, which `lent` closes here."""
        self._report, write_end = os.pipe()
        lent.callback(os.close, write_end)
        return write_end

    def environment(self) -> dict[str, str]:
        """What marks the processes of the tree."""
        return {TREE: self.token}

    def is_guarded(self) -> bool:
        """Whether a warden sees to what the child has started, or has done so already."""
        if self._report < 0:
            return False
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        ended_without_a_word = any(events & select.POLLHUP and not events & select.POLLIN for _, events in poll.poll(0))
        return can_sweep() and not ended_without_a_word

    def clear(self) -> None:
        """Return when nothing of the tree is left; its root must have ended. Bounded, and never raises."""
        report = None
        with contextlib.suppress(OSError):
            if _readable(self._report, SWEEP_TIMEOUT + 1.0):
                report = read_report(os.read(self._report, _REPORT_BYTES))
        if report is None:
            with contextlib.suppress(OSError):
                _reap(sweep(self.token))
            return
        _await_end(report[0])
        _reap([report[0], *report[1]])

    def close(self) -> None:
        """Close the pipe."""
        if self._report >= 0:
            os.close(self._report)
            self._report = -1


def _await_end(pid: int) -> None:
    """Wait until a warden that has reported has ended, too; that takes it a moment."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            _readable(descriptor, _REAP_TIMEOUT)
        finally:
            os.close(descriptor)


def _reap(pids: list[int]) -> None:
    """Collect those of the ended processes that have become children of ours."""
    deadline = time.monotonic() + _REAP_TIMEOUT
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None and time.monotonic() < deadline:
                time.sleep(0.001)


def _readable(descriptor: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
