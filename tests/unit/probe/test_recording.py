"""The file: what is written comes back, up to where it was cut off; what is no recording is refused."""

import io
import os
import stat
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.probe.recording import (
    MAGIC,
    Direction,
    Kept,
    KeptFrame,
    Record,
    Recorder,
    Role,
    create,
    kept_frame,
    opened,
    read_recording,
    total,
)
from tests.support.wires import HEADER, TO_ENGINE, TO_FRONTEND, joining, record, recording_of

RECORDS = [*joining(), Record(5.0, Direction.EVENT, Role.INPUT, b"\0\0", 1, 0, [], note="gone")]


def test_what_was_written_comes_back() -> None:
    recording = read_recording(io.BytesIO(recording_of(RECORDS)), "it")
    assert recording.header == HEADER
    assert list(recording.records()) == RECORDS
    assert not recording.cut_off


def test_a_file_that_was_cut_off_anywhere_gives_what_is_whole() -> None:
    data = recording_of(RECORDS)
    shortest = len(recording_of([]))
    whole = [len(recording_of(RECORDS[:count])) for count in range(len(RECORDS) + 1)]
    for length in range(shortest, len(data)):
        recording = read_recording(io.BytesIO(data[:length]), "it")
        found = list(recording.records())
        assert found == RECORDS[: sum(end <= length for end in whole) - 1]
        assert recording.cut_off == (length not in whole)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no recording"),
        (b"something else entirely", "no recording"),
        (b"muro-wire-recording 2\n" + bytes(9), "version '2'"),
        (MAGIC, "cut off"),
        (MAGIC + b"\0\0\0\1\xc1", "damaged in its header"),
        (MAGIC + b"\xff\xff\xff\xff", "claims a record"),
    ],
)
def test_what_is_no_recording_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_recording(io.BytesIO(data), "it")


def test_damage_is_told_after_what_is_whole() -> None:
    recording = read_recording(io.BytesIO(recording_of(RECORDS[:2]) + b"\0\0\0\1\xc1" + b"more"), "it")
    records = recording.records()
    assert [next(records), next(records)] == RECORDS[:2]
    with pytest.raises(ConfigError, match="damaged after 2 records"):
        next(records)


def test_it_ends_at_its_limit_and_says_so() -> None:
    file = io.BytesIO()
    recorder = Recorder(file, len(recording_of(RECORDS[:2])))
    recorder.begin(HEADER)
    for one in RECORDS:
        recorder.write(one)
    assert (recorder.records, recorder.missed) == (2, len(RECORDS) - 2)
    assert "limit" in recorder.problem
    assert file.getvalue() == recording_of(RECORDS[:2])


class FullDisk(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    recorder = Recorder(FullDisk(), 1 << 20)
    recorder.begin(HEADER)
    recorder.write(RECORDS[0])
    assert "No space left" in recorder.problem
    assert (recorder.records, recorder.missed) == (0, 1)


def test_a_file_is_its_owners_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "wire.rec"
    before = os.umask(0)
    try:
        create(str(path)).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="never overwritten"):
        create(str(path))
    with pytest.raises(ConfigError, match="cannot record"):
        create(str(tmp_path / "nowhere" / "wire.rec"))
    with pytest.raises(ConfigError, match="cannot read"), opened(str(tmp_path / "nothing")):
        pass


def test_a_message_is_whole_with_zeros_for_the_arrays_that_were_not_kept() -> None:
    frames = [KeptFrame(b"\0", 1), KeptFrame(b"\x90", 1), KeptFrame(b"h" * 16, 300, Kept.HASHED)]
    one = Record(0.0, TO_ENGINE, Role.INPUT, b"\0\0", 0, 0, frames)
    assert one.payloads == [b"\0", b"\x90", bytes(300)]
    assert total(frames) == 302
    hidden = Record(0.0, TO_FRONTEND, Role.OUTPUT, b"\0\0", 0, 0, [frames[2]])
    assert hidden.payloads is None, "a payload that was not kept cannot be read"
    cut = Record(0.0, TO_FRONTEND, Role.OUTPUT, b"\0\0", 0, 0, [kept_frame(bytes(100), 100, Kept.WHOLE, 10)])
    assert cut.payloads is None and cut.frames[0] == KeptFrame(bytes(10), 100, Kept.CUT)
    absurd = Record(0.0, TO_ENGINE, Role.INPUT, b"\0\0", 0, 0, [*frames[:2], KeptFrame(b"", 1 << 60, Kept.HASHED)])
    assert absurd.payloads is None, "nobody sets aside so many zeros"


def test_the_record_of_a_message() -> None:
    assert record(Role.INPUT, TO_ENGINE, b"\0", b"\x90").payloads == [b"\0", b"\x90"]


@pytest.mark.parametrize("missing", [0, 1])
def test_it_may_come_through_a_pipe(missing: int) -> None:
    there, here = os.pipe()
    data = recording_of(RECORDS)
    with open(there, "rb") as file:
        with open(here, "wb") as writer:
            writer.write(data[: len(data) - missing])
        recording = read_recording(file, "it")
        assert list(recording.records()) == RECORDS[: len(RECORDS) - missing]
        assert recording.cut_off == bool(missing)


@pytest.mark.parametrize(("at", "size"), [(float("inf"), 1), (float("nan"), 1), (1e300, 1), (1.0, -1)])
def test_times_and_sizes_that_are_none_are_damage(at: float, size: int) -> None:
    wrong = Record(at, TO_ENGINE, Role.INPUT, b"\0\0", 0, 0, [KeptFrame(b"", size, Kept.HASHED)])
    recording = read_recording(io.BytesIO(recording_of([RECORDS[0], wrong])), "it")
    with pytest.raises(ConfigError, match="damaged after 1 records: a time or a size"):
        list(recording.records())
