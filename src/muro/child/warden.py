"""The warden: a tiny process that outlives a killed engine just long enough to take its descendants along.

A process group does not hold those who leave it (``setsid``), and an engine that is killed cannot clean up
after itself. So each child, before anything else, posts a warden: a fork of the fresh interpreter, in a session
of its own and nobody's child. It sleeps until the engine has ended, kills what is left of the engine's tree,
waits until all of it has really gone, leaves word, and ends.

A process belongs to the tree if it is in the engine's process group, or if it carries the tree's token in the
environment with which it was started. Only one that leaves the group *and* is started with another environment
is not found.

Invariants:
- A warden never outlives its engine by more than `SWEEP_TIMEOUT` and a moment: the engine's pidfd wakes it.
- It holds no descriptor but the engine's and the front-end's pidfd, the read end of the life-line and the pipe
  on which it reports: no port, no log, no memory file, and nobody's working directory.
- It takes no signal that can be blocked, so what stops an engine in good order does not end its warden first.
- A process is named by its pidfd before it is looked at, so nobody is killed who merely got a dead one's number.
- It is the third watch over the life-line (see `child.lifeline`): it also works when a fork of the front-end
  holds that pipe open and native code in the engine holds the interpreter lock at once.

Who tidies up after the dead is killed last, and only if it takes long: Python's resource trackers remove the shared
memory and the semaphores of those who were killed, and end by themselves then.

Where there is no ``/proc``, the process group alone is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator

TREE = "MURO_TREE"
"""Name of the variable that marks the processes of a tree."""
SWEEP_TIMEOUT = 5.0
"""Seconds to wait for killed processes; one that is stuck in the kernel is left then."""
TIDY_TIMEOUT = 2.0
"""Seconds that who tidies up gets of these."""
_TIDY = b"multiprocessing.resource_tracker"
"""In the command of a process that tidies up."""
_PAUSE = 0.005
_MOST_PIDS = 256
"""So many of the killed are named in the report."""


def post_alone() -> None:
    """The warden of a process that nobody watches over: it marks what it will start, and reports to nobody."""
    os.environ[TREE] = token = os.urandom(8).hex()
    with contextlib.suppress(OSError):  # no process can be made: then there is no warden
        post(token, None, None, os.open(os.devnull, os.O_WRONLY))


def post(token: str, parent_pid: int | None, lifeline_fd: int | None, report_fd: int) -> None:
    """Fork the warden of this process, which must have one thread. Closes `report_fd` here.

    Args:
        token: value of `TREE` in the environment of all descendants.
        parent_pid: the front-end, whose end ends this process; None: nobody's does.
        lifeline_fd: read end of the life-line, if there is one.
        report_fd: pipe for the warden's report; its closing says that the warden has gone.

    Raises:
        OSError: no process could be made; the child may go on without a warden.
    """
    engine = os.getpid()
    opened = [os.pidfd_open(engine)]
    if parent_pid is not None:
        with contextlib.suppress(ProcessLookupError):  # gone already: the life-line will tell
            opened.append(os.pidfd_open(parent_pid))
    watched = opened if lifeline_fd is None else [*opened, lifeline_fd]
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        if (between := os.fork()) == 0:
            try:
                os.setsid()
                if os.fork() == 0:  # the child of one that ends is nobody's child here
                    _guard(engine, token, watched, report_fd)
            finally:
                os._exit(0)
        os.waitpid(between, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (report_fd, *opened):
            os.close(descriptor)


def sweep(token: str, group: int | None = None) -> list[int]:
    """Kill every process of a tree but this one and wait for their ends; returns their process ids.

    Args:
        token: see `post`.
        group: a process group that is to be killed, too.
    """
    gone: list[int] = []
    began = time.monotonic()
    while members := dict(_members(token, group)):
        hurries = time.monotonic() > began + TIDY_TIMEOUT
        tidy = set() if hurries else set(filter(_tidies, members))
        for pid in members.keys() - tidy:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(members[pid], signal.SIGKILL)
        for pid in sorted(members, key=tidy.__contains__):  # they end when all others have
            limit = began + (TIDY_TIMEOUT if pid in tidy else SWEEP_TIMEOUT)
            _ended([members[pid]], max(0.0, limit - time.monotonic()))
            os.close(members[pid])
        gone += members
        if time.monotonic() > began + SWEEP_TIMEOUT:
            break
    return gone


def can_sweep() -> bool:
    """Whether descendants can be found here."""
    return os.path.exists("/proc/self/stat")


def read_report(text: bytes) -> tuple[int, list[int]] | None:
    """What a warden reported: its own process id and those that it killed; None if it ended without a word."""
    try:
        own, *killed = map(int, text.split())
    except ValueError:
        return None
    return own, killed


def _guard(engine: int, token: str, watched: list[int], report_fd: int) -> None:
    """The warden's whole life."""
    _let_go({*watched, report_fd})
    _ended(watched, None)
    # If it is the front-end that has gone, the engine's own watches end it, unless none of them can work.
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(watched[0], signal.SIGKILL)
    _ended(watched[:1], SWEEP_TIMEOUT)
    if can_sweep():
        killed = sweep(token, engine)
    else:
        killed = []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(engine, signal.SIGKILL)
    os.write(report_fd, b" ".join(b"%d" % pid for pid in [os.getpid(), *killed[:_MOST_PIDS]]))


def _let_go(kept: set[int]) -> None:
    """Hold nothing of the engine's but these descriptors."""
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("muro-warden")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _members(token: str, group: int | None) -> Iterator[tuple[int, int]]:
    """Living processes of a tree, each with a pidfd for the caller to close."""
    mark = f"{TREE}={token}".encode()
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        pid = int(name)
        if not _belongs(pid, mark, group):
            continue
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it has gone meanwhile
            continue
        if _belongs(pid, mark, group):  # still: so the descriptor means it
            yield pid, descriptor
        else:
            os.close(descriptor)


def _belongs(pid: int, mark: bytes, group: int | None) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
        if state in (b"Z", b"X"):
            return False
        if int(its_group) == group:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except (OSError, ValueError):  # it has gone, or is not ours to look at
        return False


def _tidies(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _TIDY in file.read()
    except OSError:  # it has gone
        return False


def _ended(descriptors: list[int], timeout: float | None) -> bool:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))
