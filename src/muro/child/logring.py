"""The log of a child: standard output and error in one bounded memory file that outlives the child.

Not a pipe, because a full pipe stops whoever writes, the engine. Not a plain file, because native code may
write gigabytes. It is a memory file that is written in laps:

- Child and parent hold the same open file description, so they share its position; what stands before it is the log.
- Once a lap is longer than `LAP` bytes its last lines are copied to the start, the memory behind them is given
  back, and the position is set there. So the newest lines survive every lap.
- Python's own streams set back after each write; for native writers a thread of the child looks every `LOOK_EVERY`
  seconds, and so does the parent, if it has such a thread, for native code may hold the child's interpreter lock.
- The size is sealed at `CAPACITY`, so the kernel refuses (EPERM) what native code writes beyond it between two looks.
  Memory is bounded always, and a megabyte as a rule.

Invariants:
- Nothing here ever blocks a writer, and Python's writers never see the refusal.
- The position is changed under a lock of the file that child and parent share (``flock`` on descriptions of their
  own); whoever does not get it leaves the work to the other.
- What a native writer adds while the position is being set back is found behind the old position, where all was
  zero, and moved: its place in the order of lines may change, nothing more.
- The parent reads at explicit offsets, and the tail only when nobody sets back: what came meanwhile is not in its
  place yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

LAP = 1 << 20
KEPT = 64 << 10
"""At most so many bytes of a lap begin the next one."""
CAPACITY = 256 << 20
LOOK_EVERY = 0.5
TAIL_BYTES = 16 << 10
"""At most so much of the log goes into an error message."""
_CHUNK = 64 << 10
_LAP_PATIENCE = 0.5


def create_log() -> int:
    """A new log, as a descriptor of a sealed memory file."""
    descriptor = os.memfd_create("muro-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, CAPACITY)  # sparse: memory is taken by what is written
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return descriptor


def read_tail(descriptor: int, lines: int) -> str:
    """The last `lines` lines of a log, at most `TAIL_BYTES` bytes of them. Waits a little for a lap that begins."""
    with _own_description(descriptor) as own:
        _await_lap(own)
        return _tail(descriptor, lines)


def _await_lap(own: int) -> None:
    """Until nobody sets back, and nobody will while `own` is open; but who sets back may have been stopped."""
    deadline = time.monotonic() + _LAP_PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(own, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(_LAP_PATIENCE / 100)


def _tail(descriptor: int, lines: int) -> str:
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    start = max(0, end - TAIL_BYTES)
    text = os.pread(descriptor, end - start, start).replace(b"\0", b"")
    if end > LAP and not text:  # its writer was killed while it set back: the end of the lap is at the start already
        text = os.pread(descriptor, KEPT, 0).rstrip(b"\0")[-TAIL_BYTES:]
    kept = text.decode("utf-8", "replace").splitlines()
    return "\n".join(kept[-lines:])


def read_new(descriptor: int, seen: int) -> tuple[str, int]:
    """What was written since the position was `seen`, and the position now; the last lines again after a lap."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    start = max(0 if end < seen else seen, end - _MOST_NEW)
    text = os.pread(descriptor, end - start, start)
    return text.replace(b"\0", b"").decode("utf-8", "replace"), end


_MOST_NEW = 4 * LAP


def set_back(descriptor: int) -> None:
    """Begin a new lap if the present one is long enough, unless somebody else is doing so."""
    if os.lseek(descriptor, 0, os.SEEK_CUR) <= LAP:
        return
    with _own_description(descriptor) as own:
        try:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        if end > LAP:
            _begin_lap(descriptor, own, end)


def _begin_lap(log: int, own: int, end: int) -> None:
    """Everything in an order that a writer may interrupt: until the position changes it writes behind `end`."""
    kept = os.pread(own, KEPT, end - KEPT)
    kept = kept.partition(b"\n")[2] or kept
    os.pwrite(own, kept, 0)
    _erase(own, len(kept), end)
    os.lseek(log, len(kept), os.SEEK_SET)
    late = end
    while piece := os.pread(own, _CHUNK, late).rstrip(b"\0"):  # written in the meantime
        os.write(log, piece)
        _erase(own, late, late + len(piece))
        late += len(piece)


def _erase(own: int, start: int, end: int) -> None:
    """Make bytes zero and give their memory back."""
    first = min(end, -(-start // mmap.PAGESIZE) * mmap.PAGESIZE)
    last = max(first, end // mmap.PAGESIZE * mmap.PAGESIZE)
    os.pwrite(own, bytes(first - start), start)
    if last > first:
        with mmap.mmap(own, CAPACITY) as memory:
            memory.madvise(mmap.MADV_REMOVE, first, last - first)
    os.pwrite(own, bytes(end - last), last)


@contextlib.contextmanager
def _own_description(descriptor: int) -> Iterator[int]:
    """The same file, opened anew: with a position and a lock of its own."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield own
    finally:
        os.close(own)


class LogRing:
    """The child's end of the log.

    Args:
        descriptor: the log; a descriptor of its own, so that an engine that redirects 1 or 2 to a file of its
            own never has that file rewound.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def take_standard_streams(self) -> None:
        """Let `sys.stdout` and `sys.stderr` write by lines and set the ring back."""
        sys.stdout = self._text_stream(1)
        sys.stderr = self._text_stream(2)

    def watch(self) -> None:
        """Start the thread that sets back after native writers."""
        threading.Thread(target=self._look, name="muro-log", daemon=True).start()

    def set_back(self) -> None:
        """Begin a new lap if the present one is long enough. Never raises."""
        with contextlib.suppress(OSError):  # no descriptor is left for it: next time
            set_back(self._descriptor)

    def _look(self) -> None:
        never = threading.Event()
        while not never.wait(LOOK_EVERY):
            self.set_back()

    def _text_stream(self, descriptor: int) -> io.TextIOWrapper:
        raw = _RingWriter(descriptor, self)
        return io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )


class _RingWriter(io.RawIOBase):
    """Standard output or error, written in pieces between which the ring may be set back."""

    def __init__(self, descriptor: int, ring: LogRing) -> None:
        self._descriptor = descriptor
        self._ring = ring

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any, /) -> int:
        piece = memoryview(data)[:_CHUNK]
        try:
            written = os.write(self._descriptor, piece)
        except PermissionError:  # native code has filled the ring
            self._ring.set_back()
            try:
                written = os.write(self._descriptor, piece)
            except PermissionError:  # and still does; what we have to say is lost
                return len(piece)
        self._ring.set_back()
        return written
