"""A child ends when its parent ends, whatever either is doing.

The life-line is a pipe whose write end only the parent holds and on which nothing is ever sent: when the
parent ends, however it ends, the kernel closes that end. Two watches, because each has a hole:

- The kernel itself kills the child when the pipe closes (``O_ASYNC`` with ``F_SETSIG`` set to SIGKILL). No
  instruction of ours runs, so it works while native code holds the interpreter lock.
- A daemon thread waits for the parent's pidfd and the pipe. It works when some process forked natively from
  the parent still holds the write end. (Forks by Python close it, see `launch.spawn`.)

``PR_SET_PDEATHSIG`` is not used: it fires when the *thread* that spawned the child ends.

Invariants:
- What the child has started is its warden's business (`child.warden`). A child without one takes its process group
  along, if it leads it: then the group is the child and what it has started.
- There is no moment unwatched: after arming, both the pipe and the parent's identity are looked at once more.
"""

import fcntl
import os
import select
import signal
import threading

LOST_PARENT = 12  # as in wire.failure.ExitCode
# Not all Python builds name these constants of Linux.
_F_SETOWN = getattr(fcntl, "F_SETOWN", 8)
_F_SETSIG = getattr(fcntl, "F_SETSIG", 10)


def arm(lifeline_fd: int, parent_pid: int, guarded: bool = False) -> None:
    """Tie this process to its parent; ends the process at once if the parent has gone already.

    Args:
        lifeline_fd: read end of the silent pipe.
        parent_pid: process id of the parent; must still be our parent.
        guarded: whether a warden takes along what this process has started.
    """
    whole_group = not guarded and os.getpgrp() == os.getpid()
    fcntl.fcntl(lifeline_fd, _F_SETOWN, -os.getpid() if whole_group else os.getpid())
    fcntl.fcntl(lifeline_fd, _F_SETSIG, int(signal.SIGKILL))
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        watched = [lifeline_fd, os.pidfd_open(parent_pid)]
    except ProcessLookupError:
        os._exit(LOST_PARENT)
    if _ended(watched, 0) or os.getppid() != parent_pid:
        os._exit(LOST_PARENT)
    threading.Thread(target=_watch, args=(watched, whole_group), name="muro-lifeline", daemon=True).start()


def _watch(descriptors: list[int], whole_group: bool) -> None:
    _ended(descriptors, None)
    if whole_group:
        os.killpg(0, signal.SIGKILL)
    os._exit(LOST_PARENT)


def _ended(descriptors: list[int], timeout_ms: int | None) -> bool:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))
