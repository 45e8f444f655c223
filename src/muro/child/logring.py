"""The log of a child: standard output and error in one bounded memory file that outlives the child.

Not a pipe, because a full pipe stops whoever writes, the engine. Not a plain file, because native code may
write gigabytes. The file is a ring that is written in laps:

- Child and parent hold the same open file description, so they share its position. Once a lap is longer than
  `LAP` bytes the child sets the position back to the start and marks the end of the lap with a zero byte.
  The text before the position is the newest, the text behind it (up to the zero byte) that of the lap before.
- Python's own streams set back after each write; for native writers a thread looks once per second.
- The size is sealed at `CAPACITY`, so the kernel refuses what a native writer adds beyond within one second,
  or while it holds the interpreter lock. What is refused is lost; memory is bounded always.

Invariants:
- Nothing here ever blocks a writer, and Python's writers never see the refusal.
- The position is changed under the lock of `LogRing` only. A native write that slips between looking and
  setting back may lose its place in the order of lines, never more.
- The parent only reads, at explicit offsets; it never moves the position.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
import threading
from typing import Any

LAP = 1 << 20
CAPACITY = 16 << 20
TAIL_BYTES = 16 << 10
"""At most so much of the log goes into an error message."""
_LOOK_EVERY = 1.0
_CHUNK = 64 << 10


def create_log() -> int:
    """A new log, as a descriptor of a sealed memory file."""
    descriptor = os.memfd_create("muro-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, CAPACITY)  # sparse: memory is taken by what is written
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return descriptor


def read_tail(descriptor: int, lines: int) -> str:
    """The last `lines` lines of a log, at most `TAIL_BYTES` bytes of them."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    start = max(0, end - TAIL_BYTES)
    text = os.pread(descriptor, end - start, start)
    if start == 0 and text.count(b"\n") <= lines:
        text = _old_lap(descriptor, end)[-TAIL_BYTES:].partition(b"\n")[2] + text  # its first line is half overwritten
    kept = text[-TAIL_BYTES:].replace(b"\0", b"").decode("utf-8", "replace").splitlines()
    return "\n".join(kept[-lines:])


def read_new(descriptor: int, seen: int) -> tuple[str, int]:
    """What was written since the position was `seen`, and the position now. Right within a lap and the next."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    if end < seen:
        text = _old_lap(descriptor, seen) + os.pread(descriptor, end, 0)
    else:
        text = os.pread(descriptor, end - seen, seen)
    return text.replace(b"\0", b"").decode("utf-8", "replace"), end


def _old_lap(descriptor: int, start: int) -> bytes:
    """What is left behind `start` of the lap before, up to its mark; in the first lap nothing is."""
    pieces = []
    while piece := os.pread(descriptor, _CHUNK, start):  # all at once it would be megabytes of nothing
        text, mark, _ = piece.partition(b"\0")
        pieces.append(text)
        if mark:
            break
        start += len(piece)
    return b"".join(pieces)


class LogRing:
    """The child's end of the log.

    Args:
        descriptor: the log; a descriptor of its own, so that an engine that redirects 1 or 2 to a file of its
            own never has that file rewound.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def take_standard_streams(self) -> None:
        """Let `sys.stdout` and `sys.stderr` write by lines and set the ring back."""
        sys.stdout = self._text_stream(1)
        sys.stderr = self._text_stream(2)

    def watch(self) -> None:
        """Start the thread that sets back after native writers."""
        threading.Thread(target=self._look, name="muro-log", daemon=True).start()

    def set_back(self) -> None:
        """Begin a new lap if the present one is long enough."""
        with self._lock:
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            if end > LAP:
                if end < CAPACITY:
                    os.pwrite(self._descriptor, b"\0", end)
                os.lseek(self._descriptor, 0, os.SEEK_SET)

    def _look(self) -> None:
        never = threading.Event()
        while not never.wait(_LOOK_EVERY):
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
            written = os.write(self._descriptor, piece)
        self._ring.set_back()
        return written
