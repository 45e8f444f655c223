"""The progress page, mapped: one memory page that a child writes and its parent reads.

It lies in a memfd that the child inherits by descriptor number, so it has no name that could be left behind, and
what a killed child wrote last stays readable. Invariants: each section has one writing thread (the loop thread
writes steps, tokens, queue lengths and what it does between steps; the receiver its messages and the dropped
frames); phases may come from any thread, under a lock; the reader takes no lock and never makes a writer wait. The
layout is `wire.progress`.
"""

from __future__ import annotations

import mmap
import os
import threading
from time import monotonic_ns

from muro.errors import InternalError, RemoteProtocolError
from muro.wire.progress import (
    DROPPED,
    ENDED,
    HEADER,
    IDLE,
    MAGIC,
    PAGE_SIZE,
    PHASE,
    RECEIVED,
    STARTED,
    TURN,
    VERSION,
    Progress,
    phase_bytes,
    unpack,
)

# Bound once: these run twice per step.
_pack_started, _at_started = STARTED.pack_into, STARTED.offset
_pack_ended, _at_ended = ENDED.pack_into, ENDED.offset
_PATIENCE = 100
"""Copies to compare before the last good reading is given instead; a writer may have been stopped half way."""


class ProgressPage:
    """One mapped page; made by `create` in the parent and by `attach` in the child."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self._fd = fd
        self._memory = memory
        self._lock = threading.Lock()
        self._phases = 0
        self._started = 0
        self._ended = 0
        self._ended_at = 0
        self._ended_writes = 0
        self._achieved = 0
        self._tokens = 0
        self._dropped = 0
        self._turns = 0
        self._taken = 0
        self._messages = 0
        self._messages_done = 0
        self._queued = 0
        self._ignored = 0
        self._received_writes = 0
        self._last = Progress()

    @classmethod
    def create(cls, *, generation: int = 0) -> ProgressPage:
        """A new page for the engine of a generation; the descriptor closes on exec unless it is passed on."""
        fd = os.memfd_create("muro-progress", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, PAGE_SIZE)
            page = cls(fd, mmap.mmap(fd, PAGE_SIZE))
        except BaseException:
            os.close(fd)
            raise
        HEADER.pack_into(page._memory, HEADER.offset, 1, MAGIC, VERSION, 0, generation, 0, 1)
        return page

    @classmethod
    def attach(cls, fd: int) -> ProgressPage:
        """The page behind an inherited descriptor, owned from now on; notes this process as the one that writes.

        Raises InternalError, and closes the descriptor, if it is something else.
        """
        if os.fstat(fd).st_size != PAGE_SIZE:
            os.close(fd)
            raise InternalError(f"descriptor {fd} is no progress page")
        page = cls(fd, mmap.mmap(fd, PAGE_SIZE))
        try:
            generation = page.read().generation
        except RemoteProtocolError as error:
            page.close()
            raise InternalError(f"descriptor {fd}: {error}") from error
        HEADER.pack_into(page._memory, HEADER.offset, 2, MAGIC, VERSION, os.getpid(), generation, 0, 2)
        return page

    def fileno(self) -> int:
        """The descriptor to pass on; -1 if closed."""
        return self._fd

    def set_phase(self, text: str, percent: float = 0.0) -> None:
        """Say what is being done (32 bytes of it are kept) and how far it is, 0 ... 100; any thread."""
        raw = phase_bytes(text)
        with self._lock:
            self._phases = n = self._phases + 1
            PHASE.pack_into(self._memory, PHASE.offset, n, percent, monotonic_ns(), len(raw), raw, n)

    def step_started(self) -> None:
        """A step begins (loop thread)."""
        self._started = n = self._started + 1
        _pack_started(self._memory, _at_started, n, n, monotonic_ns(), n)

    def step_ended(self, tokens: int, running: int, waiting: int, achieved: int = 0) -> None:
        """It ended with so many new tokens; requests running and waiting now (loop thread).

        `achieved` counts what all steps so far have done for requests beside putting out tokens. A step after which
        neither number has grown was no progress.
        """
        self._ended += 1
        self._ended_at = monotonic_ns()
        self._tokens += tokens
        self._achieved = achieved
        self._write_ended(running, waiting)

    def turns_to(self, activity: bytes, counted: int) -> None:
        """The loop begins to do something that is no step; `counted` is 1 if it has taken a client's input for it."""
        self._turns = n = self._turns + 1
        self._taken = taken = self._taken + counted
        TURN.pack_into(self._memory, TURN.offset, n, taken, monotonic_ns(), len(activity), activity, n)

    def idles(self, running: int, waiting: int) -> None:
        """The loop has nothing to do and waits for input; `running` requests are frozen or lost (loop thread)."""
        self._write_ended(running, waiting)
        self.turns_to(IDLE, 0)

    def message_begun(self) -> None:
        """A message was read (receiver thread)."""
        self._messages += 1
        self._write_received()

    def message_done(self, queued: int) -> None:
        """It was dealt with; `queued` messages were passed on to the loop so far (receiver thread)."""
        self._messages_done += 1
        self._queued = queued
        self._write_received()

    def frame_dropped(self) -> None:
        """A message was dropped that could be answered to nobody (receiver thread)."""
        self._dropped = n = self._dropped + 1
        DROPPED.pack_into(self._memory, DROPPED.offset, n, n, n)

    def _write_ended(self, running: int, waiting: int) -> None:
        self._ended_writes = n = self._ended_writes + 1
        ended, at, tokens = self._ended, self._ended_at, self._tokens
        yielded = tokens + self._achieved
        _pack_ended(self._memory, _at_ended, n, ended, at, yielded, tokens, running, waiting, n)

    def clients_ignored(self, count: int) -> None:
        """From so many clients nothing is read at the moment (receiver thread)."""
        self._ignored = count
        self._write_received()

    def _write_received(self) -> None:
        self._received_writes = n = self._received_writes + 1
        begun, done, queued, ignored = self._messages, self._messages_done, self._queued, self._ignored
        RECEIVED.pack_into(self._memory, RECEIVED.offset, n, begun, done, queued, ignored, n)

    def read(self) -> Progress:
        """What the page says now; any process, also after the writer's death. Raises RemoteProtocolError."""
        if self._fd < 0:
            return self._last
        copy = self._memory[:PAGE_SIZE]
        for _ in range(_PATIENCE):
            again = self._memory[:PAGE_SIZE]
            if again == copy and (progress := unpack(again)) is not None:
                self._last = progress
                break
            copy = again
        return self._last

    def close(self) -> None:
        """Unmap and close the descriptor; may be called twice. The last reading stays what it was."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._memory.close()
            os.close(fd)
