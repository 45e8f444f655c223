"""The recording of a wire: one file, append-only, readable up to where it was cut off.

    muro-wire-recording 1\\n
    [length: 4 bytes, big endian][msgpack map: Header]
    [length][msgpack array: Record] ...

Frames are kept as they came, or without what they say (see `probe.withholding`), or cut; each says which. Nobody but
the file's owner may read it. What a record means is the business of `probe.reading`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

import msgspec

from muro.config import LONGEST
from muro.errors import ConfigError

MAGIC: Final = b"muro-wire-recording 1\n"
_FAMILY: Final = b"muro-wire-recording "
_PREFIX: Final = 4

MAX_RECORD_BYTES: Final = 1 << 30
"""A reader takes a longer record for damage."""
MAX_BLANK_BYTES: Final = 1 << 28
"""As many zeros stand for what was not kept of one message; with more it cannot be read."""


class Role(enum.StrEnum):
    """What the sockets of a message are for."""

    HANDSHAKE = "handshake"
    INPUT = "input"
    OUTPUT = "output"
    COORDINATOR_INPUT = "coordinator-in"
    COORDINATOR_OUTPUT = "coordinator-out"


class Direction(enum.StrEnum):
    """Who speaks."""

    TO_ENGINE = "to-engine"
    TO_FRONTEND = "to-frontend"
    EVENT = "event"
    """Nobody: something happened to a connection, or to the recording; `Record.note` says what."""


class Kept(enum.StrEnum):
    """How much of a frame is kept."""

    WHOLE = "whole"
    WITHHELD = "withheld"
    """A copy that can be read like the frame, but without prompts and what comes of them."""
    HASHED = "hashed"
    """`data` is a hash (BLAKE2b, 16 bytes) of the frame."""
    CUT = "cut"
    """The first bytes of what would have been kept."""


class KeptFrame(msgspec.Struct, array_like=True, frozen=True):
    """One frame of a message; `size` is that of the frame as it came, in bytes."""

    data: bytes
    size: int
    kept: Kept = Kept.WHOLE


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """How the recording was made. `started` is in Unix seconds."""

    started: float
    listen: str = ""
    to: str = ""
    prompts: bool = False
    """Whether frames are kept as they came."""
    max_frame_bytes: int = 0
    max_file_bytes: int = 0


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One message, or one event.

    `at` is in seconds since the start. `peer` is the engine's identity. `link` counts how often engines have joined:
    one with the same identity that comes again has another number. `client` is the front-end process, by index;
    None where there is but one socket. `withheld` names the fields that were left out.
    """

    at: float
    direction: Direction
    role: Role
    peer: bytes
    link: int
    client: int | None
    frames: list[KeptFrame]
    withheld: list[str] = []
    note: str = ""

    @property
    def payloads(self) -> list[bytes] | None:
        """The message as it can be read, or None if too little of it was kept for that.

        An auxiliary frame of which nothing was kept stands there as zeros of its size.
        """
        if any(frame.kept is Kept.CUT for frame in self.frames):
            return None
        first_aux = payload_place(self.role, self.direction, len(self.frames)) + 1
        blank = sum(frame.size for frame in self.frames if frame.kept is Kept.HASHED)
        if blank > MAX_BLANK_BYTES or any(frame.kept is Kept.HASHED for frame in self.frames[:first_aux]):
            return None
        return [bytes(frame.size) if frame.kept is Kept.HASHED else frame.data for frame in self.frames]


class Recorder:
    """Writes a recording; belongs to one thread.

    What cannot be written ends the recording, never the work of its owner: `problem` says why.

    Args:
        file: opened for writing, unbuffered, positioned at its start.
        max_file_bytes: when the next record would make the file larger, recording ends.
        clock: seconds, monotonic; record times count from the making of the recorder.
    """

    def __init__(self, file: BinaryIO, max_file_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._max = max_file_bytes
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._began = clock()
        self.size = 0
        """Bytes written."""
        self.records = 0
        self.missed = 0
        """Records that came after the end of the recording."""
        self.problem = ""

    def begin(self, header: Header) -> None:
        """The first thing to be written."""
        self._write(MAGIC + self._framed(header))

    def now(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    def write(self, record: Record) -> None:
        """Append a record, unless the recording has ended."""
        if self.problem:
            self.missed += 1
            return
        block = self._framed(record)
        if self.size + len(block) > self._max:
            self.problem = f"the file has reached its limit of {self._max} bytes"
            self.missed += 1
            return
        if self._write(block):
            self.records += 1
        else:
            self.missed += 1

    def close(self) -> None:
        """May be called twice."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _framed(self, what: Header | Record) -> bytes:
        body = self._encoder.encode(what)
        return len(body).to_bytes(_PREFIX, "big") + body

    def _write(self, block: bytes) -> bool:
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.problem = f"it cannot be written: {error.strerror or error}"
            return False
        self.size += len(block)
        return True


def create(path: str) -> BinaryIO:
    """A new file that only its owner may read, unbuffered. Raises ConfigError if there is one already."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already, and recordings are never overwritten; choose another name"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot record to {path}: {error.strerror}") from error
    return open(descriptor, "wb", buffering=0)


class Recording:
    """A recording to be read: its `header`, and `records()` from the first one on. Made by `read_recording`.

    Args:
        file: positioned behind the header.
        name: what to call it in errors.
    """

    def __init__(self, file: BinaryIO, name: str, header: Header) -> None:
        self._file = file
        self._name = name
        self._decoder = msgspec.msgpack.Decoder(Record)
        self.header = header
        self.cut_off = False
        """Whether the file ended within a record; known when `records` is done."""

    def records(self) -> Iterator[Record]:
        """The records in the order in which they were written. Raises ConfigError where the file is damaged."""
        count = 0
        while (block := self._block()) is not None:
            try:
                record = self._decoder.decode(block)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ConfigError(f"{self._name} is damaged after {count} records: {error}") from error
            if not abs(record.at) <= LONGEST or any(frame.size < 0 for frame in record.frames):
                raise ConfigError(f"{self._name} is damaged after {count} records: a time or a size is none")
            yield record
            count += 1

    def _block(self) -> bytes | None:
        block, self.cut_off = _read_block(self._file, self._name)
        return block


def read_recording(file: BinaryIO, name: str) -> Recording:
    """Read the header. Raises ConfigError for what is no recording, or one of another version."""
    start = file.read(len(MAGIC))
    if start != MAGIC:
        if start.startswith(_FAMILY):
            version = start.removeprefix(_FAMILY).strip().decode("ascii", "replace")
            raise ConfigError(f"{name} is a recording of version {version!r}; this muro reads version 1")
        raise ConfigError(f"{name} is no recording of `muro wire tap`")
    block, _ = _read_block(file, name)
    if block is None:
        raise ConfigError(f"{name} has been cut off before its first record")
    try:
        return Recording(file, name, msgspec.msgpack.decode(block, type=Header))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is damaged in its header: {error}") from error


def _read_block(file: BinaryIO, name: str) -> tuple[bytes | None, bool]:
    """The next block, or None at the end of the file; and whether that is within a block. The file may be a pipe."""
    prefix = file.read(_PREFIX)
    if len(prefix) < _PREFIX:
        return None, bool(prefix)
    length = int.from_bytes(prefix, "big")
    if length > MAX_RECORD_BYTES:
        raise ConfigError(f"{name} is damaged: it claims a record of {length} bytes")
    block = file.read(length)
    return (block, False) if len(block) == length else (None, True)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Recording]:
    """A recording by its path. Raises ConfigError."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield read_recording(file, path)


def payload_place(role: Role, direction: Direction, frames: int) -> int:
    """The place of the payload in a message of so many frames; before it there is a type byte, after it arrays."""
    if direction is not Direction.TO_ENGINE:
        return 0
    return int(role is Role.INPUT or (role is Role.COORDINATOR_INPUT and frames > 1))


def kept_frame(data: bytes, size: int, kept: Kept, max_bytes: int) -> KeptFrame:
    """A frame to be recorded, cut to the most bytes that are kept of one."""
    if len(data) > max_bytes and kept is not Kept.HASHED:
        return KeptFrame(bytes(data[:max_bytes]), size, Kept.CUT)
    return KeptFrame(data, size, kept)


def total(frames: Sequence[KeptFrame]) -> int:
    """Bytes of a message as it came."""
    return sum(frame.size for frame in frames)
