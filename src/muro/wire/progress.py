"""Layout of the progress page: what an engine process shows of itself without a message (house protocol, local only).

A page of shared memory is written by the engine process and read by its parent, even when the engine's
interpreter is stuck. This file says which bytes mean what; mapping the memory is `transport.page`.

Each section is written by one thread at a time, with one `pack_into`, between two copies of a sequence number.
A reader takes a copy of the page, then another: only if both are equal and each section's two numbers agree
is it whole. (The numbers alone do not suffice: a writer can overtake a reader within a section.)
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from muro.errors import RemoteProtocolError

PAGE_SIZE: Final = 4096
MAGIC: Final = 0x6D75726F_70616765  # "muropage"
VERSION: Final = 2
MAX_PHASE_BYTES: Final = 32

STARTING: Final = frozenset({"", "interpreter", "handshake", "loading", "connecting"})
"""Phases of a start, by their first word (what follows a colon says more)."""
SERVING: Final = "serving"
PAUSED: Final = "paused"
"""Nothing is generated, by request, until somebody resumes."""
DRAINING: Final = "draining"
STOPPING: Final = "stopping"
IDLE: Final = b"idle"
"""Activity of a loop that waits for input and has nothing to do."""


class Section:
    """Some fields of the page, between two copies of a sequence number. `offset` is in bytes."""

    __slots__ = ("offset", "pack_into", "size", "unpack_from")

    def __init__(self, offset: int, fields: str) -> None:
        layout = struct.Struct(f"<Q{fields}Q")
        self.offset: Final = offset
        self.size: Final = layout.size
        self.pack_into: Final = layout.pack_into
        """`pack_into(page, offset, sequence, *fields, sequence)`; count the sequence up with each write."""
        self.unpack_from: Final = layout.unpack_from


HEADER: Final = Section(0, "QIIII")
"""magic, version, pid, generation, padding; written once."""
PHASE: Final = Section(64, f"dqI{MAX_PHASE_BYTES}s")
"""per cent (0 ... 100), since when (ns), length of the text, text."""
STARTED: Final = Section(192, "Qq")
"""steps started, when the last one started (ns)."""
ENDED: Final = Section(256, "QqQQII")
"""steps ended, when the last one ended (ns), `yielded` and tokens since the start, requests running, held back."""
DROPPED: Final = Section(320, "Q")
"""frames that were not the protocol, dropped since the start."""
TURN: Final = Section(384, f"QqI{MAX_PHASE_BYTES}s")
"""events taken from the input queue, when the loop's activity began (ns), length of its name, name."""
RECEIVED: Final = Section(512, "QQQQ")
"""messages begun, messages done, events put into the input queue, since the start; clients that are not read from."""

_SECTIONS: Final = (HEADER, PHASE, STARTED, ENDED, DROPPED, TURN, RECEIVED)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process shows of itself. Times are CLOCK_MONOTONIC nanoseconds, 0 for "never"."""

    pid: int = 0
    generation: int = 0
    phase: str = ""
    percent: float = 0.0
    phase_since_ns: int = 0
    steps_started: int = 0
    steps_ended: int = 0
    step_started_ns: int = 0
    step_ended_ns: int = 0
    yielded: int = 0
    """Grows with whatever a step achieves: tokens put out, requests ended, prompt tokens computed."""
    tokens_out: int = 0
    running: int = 0
    """Requests that the engine has, its own waiting ones included: how many those are, only its statistics say."""
    waiting: int = 0
    """Requests that a pause holds back."""
    dropped_frames: int = 0
    activity: str = ""
    """What the loop does when it is in no step: "idle", or the input that it handles or has handled last."""
    activity_since_ns: int = 0
    events_taken: int = 0
    """Inputs of clients that the loop has taken; see `events_queued`."""
    messages_begun: int = 0
    """Messages that the input thread has read."""
    messages_done: int = 0
    """Messages that it has passed on, answered or dropped."""
    events_queued: int = 0
    """Messages that it has passed on to the loop."""
    ignored_clients: int = 0
    """Clients that it does not read from, because they do not read either."""

    @property
    def stepping(self) -> bool:
        """Whether a step was under way."""
        return self.steps_started > self.steps_ended

    @property
    def idle(self) -> bool:
        """Whether the loop waited for input and had nothing to do."""
        return self.activity == "idle"

    @property
    def phase_word(self) -> str:
        """The phase without what follows a colon."""
        return self.phase.partition(":")[0]


def phase_bytes(text: str) -> bytes:
    """A phase's name as it goes into the page: UTF-8, cut at a character border to fit."""
    return text.encode("utf-8", "replace")[:MAX_PHASE_BYTES].decode("utf-8", "ignore").encode()


def pack(progress: Progress) -> bytes:
    """A whole page that shows `progress`."""
    page = bytearray(PAGE_SIZE)
    text, activity = phase_bytes(progress.phase), phase_bytes(progress.activity)
    rows: tuple[tuple[Section, tuple[int | float | bytes, ...]], ...] = (
        (HEADER, (MAGIC, VERSION, progress.pid, progress.generation, 0)),
        (PHASE, (progress.percent, progress.phase_since_ns, len(text), text)),
        (STARTED, (progress.steps_started, progress.step_started_ns)),
        (
            ENDED,
            (
                progress.steps_ended,
                progress.step_ended_ns,
                progress.yielded,
                progress.tokens_out,
                progress.running,
                progress.waiting,
            ),
        ),
        (DROPPED, (progress.dropped_frames,)),
        (TURN, (progress.events_taken, progress.activity_since_ns, len(activity), activity)),
        (RECEIVED, (progress.messages_begun, progress.messages_done, progress.events_queued, progress.ignored_clients)),
    )
    for section, values in rows:
        section.pack_into(page, section.offset, 1, *values, 1)
    return bytes(page)


def unpack(page: bytes) -> Progress | None:
    """What a copy of the page shows, or None if it was copied while being written.

    A page that was never written (all zero) shows an empty `Progress`. Raises RemoteProtocolError if it is
    not a progress page, or one of another version.
    """
    if len(page) < PAGE_SIZE:
        raise RemoteProtocolError(f"progress page of {len(page)} bytes; it must have {PAGE_SIZE}")
    found = []
    for section in _SECTIONS:
        first, *values, last = section.unpack_from(page, section.offset)
        if first != last:
            return None
        found.append(values)
    (magic, version, pid, generation, _), (percent, since, length, text), started, ended, (dropped,), turn, received = (
        found
    )
    if magic == 0 and version == 0:
        return Progress()
    if magic != MAGIC or version != VERSION:
        raise RemoteProtocolError(f"not a progress page of version {VERSION}: magic {magic:#x}, version {version}")
    return Progress(
        pid=pid,
        generation=generation,
        phase=_text(length, text),
        percent=percent,
        phase_since_ns=since,
        steps_started=started[0],
        steps_ended=ended[0],
        step_started_ns=started[1],
        step_ended_ns=ended[1],
        yielded=ended[2],
        tokens_out=ended[3],
        running=ended[4],
        waiting=ended[5],
        dropped_frames=dropped,
        activity=_text(turn[2], turn[3]),
        activity_since_ns=turn[1],
        events_taken=turn[0],
        messages_begun=received[0],
        messages_done=received[1],
        events_queued=received[2],
        ignored_clients=received[3],
    )


def _text(length: int, raw: bytes) -> str:
    return raw[: min(length, MAX_PHASE_BYTES)].decode("utf-8", "replace")
