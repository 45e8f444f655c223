"""What a test left behind: threads, child processes, file descriptors, files, shared memory.

`Belongings.now()` looks; `left_behind` looks again until what is new has gone, or says what it is.

Invariants:
- Every process started by a test session carries the session's tag in its environment, so that orphans
  are found too, and two sessions on one machine never accuse each other.
- Temporary files of the session lie in one private directory (`claim_session`), for the same reason.
- Looking through all processes costs milliseconds, so only tests that start some pay for it (`deep`).
- The process-wide ZeroMQ context is no leak, so it is there, with its threads, whenever we look; its
  descriptors have no names, therefore descriptors are told apart by what they point to and how often.
"""

import gc
import multiprocessing.resource_tracker
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from muro.transport.context import context
from tests.support.deadline import command_line, until

TAG = "MURO_TEST_SESSION"
"""Name of the variable that marks what a session has started."""
_SHARED_MEMORY = Path("/dev/shm")
_warm: "zmq.Context[zmq.Socket[bytes]] | None" = None


def claim_session() -> Path:
    """Mark this process, and so all that it starts, and give it a private directory for temporary files.

    The path is short because socket paths are limited to 107 bytes.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="mt-"))
    os.environ[TAG] = directory.name
    os.environ["TMPDIR"] = os.environ["XDG_RUNTIME_DIR"] = tempfile.tempdir = str(directory)
    return directory


@dataclass(frozen=True)
class Belongings:
    """What this process holds at one moment; each item maps to words for people."""

    threads: dict[threading.Thread, str]
    descriptors: dict[tuple[str, int], str]
    processes: dict[int, str]
    files: dict[str, str]

    @classmethod
    def now(cls, *, deep: bool) -> "Belongings":
        """Look. `deep` also looks for processes that are not children of ours, and for shared memory."""
        _have_context()
        found = set(_children())
        files = {str(path): f"file {path}" for path in Path(tempfile.gettempdir()).iterdir()}
        if deep:
            found.update(_tagged())
            files |= {str(path): f"shared memory {path}" for path in _own_shared_memory()}
        found.discard(multiprocessing.resource_tracker._resource_tracker._pid)
        return cls(
            threads={thread: f"thread {thread.name!r}" for thread in threading.enumerate()},
            descriptors=dict(_descriptors()),
            processes={pid: f"process {pid}: {command_line(pid) or 'a zombie'}" for pid in found},
            files=files,
        )

    def since(self, before: "Belongings") -> list[str]:
        """Words for what is here and was not before."""
        return [
            words
            for mine, theirs in (
                (self.threads, before.threads),
                (self.descriptors, before.descriptors),
                (self.processes, before.processes),
                (self.files, before.files),
            )
            for key, words in mine.items()
            if key not in theirs
        ]


def left_behind(before: Belongings, *, deep: bool, within: float = 5.0) -> list[str]:
    """What is new since `before` and does not go away `within` seconds; leaked processes are then killed."""
    if not Belongings.now(deep=deep).since(before):
        return []
    gc.collect()  # an object in a cycle is no leak
    try:
        until(lambda: not Belongings.now(deep=deep).since(before), within=within)
    except AssertionError:
        now = Belongings.now(deep=deep)
        for pid in now.processes.keys() - before.processes.keys():
            _kill(pid)
        return now.since(before)
    return []


def _descriptors() -> Iterator[tuple[tuple[str, int], str]]:
    """(target, how many of it came before) of each open descriptor."""
    tracker = multiprocessing.resource_tracker._resource_tracker._fd
    seen: Counter[str] = Counter()
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the one that listdir itself used
            continue
        if number != tracker:
            yield (target, seen[target]), f"descriptor {number} -> {target}"
            seen[target] += 1


def _have_context() -> None:
    """Make the ZeroMQ context of the process and its I/O threads, unless they are there."""
    global _warm  # noqa: PLW0603 - there is one context per process
    if _warm is not context() or _warm.closed:
        _warm = context()
        _warm.socket(zmq.PAIR).close()


def _children() -> Iterator[int]:
    """Direct children of any thread of ours, zombies included."""
    for task in os.listdir("/proc/self/task"):
        try:
            yield from map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
        except FileNotFoundError:  # that thread has just ended
            continue


def _tagged() -> Iterator[int]:
    """All other processes that carry our tag."""
    tag = f"{TAG}={os.environ.get(TAG, '')}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:  # ended, or another user's
                continue
            if tag in environment.split(b"\0"):
                yield int(name)


def _own_shared_memory() -> Iterator[Path]:
    """Named segments that nobody outside the session maps; ours if they were not there before."""
    candidates = [path for path in _SHARED_MEMORY.glob("*") if path.name.startswith(("muro", "psm_", "sem."))]
    if candidates:
        strangers = _mapped_by_strangers()
        yield from (path for path in candidates if str(path) not in strangers)


def _mapped_by_strangers() -> set[str]:
    ours = {os.getpid(), *_tagged()}
    mapped = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in ours:
            try:
                maps = Path(f"/proc/{name}/maps").read_text()
            except OSError:
                continue
            mapped.update(line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line)
    return mapped


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):  # gone, or not a child of ours
        pass
