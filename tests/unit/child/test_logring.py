import os
from collections.abc import Iterator

import pytest

from muro.child.logring import CAPACITY, LAP, TAIL_BYTES, LogRing, create_log, read_new, read_tail


@pytest.fixture
def log() -> Iterator[int]:
    descriptor = create_log()
    yield descriptor
    os.close(descriptor)


def position(log: int) -> int:
    return os.lseek(log, 0, os.SEEK_CUR)


def test_a_new_log_is_empty_and_takes_no_memory(log: int) -> None:
    assert read_tail(log, 20) == ""
    assert os.fstat(log).st_blocks == 0


def test_tail(log: int) -> None:
    os.write(log, b"".join(b"line %d\n" % number for number in range(100)))
    assert read_tail(log, 3) == "line 97\nline 98\nline 99"
    assert position(log) == 790  # reading moves nothing


def test_a_last_line_without_its_end_is_shown(log: int) -> None:
    os.write(log, b"first\nterminate called after")
    assert read_tail(log, 20) == "first\nterminate called after"


def test_a_short_lap_goes_on(log: int) -> None:
    ring = LogRing(log)
    os.write(log, b"x" * LAP)
    ring.set_back()
    assert position(log) == LAP


def test_the_tail_reaches_into_the_lap_before(log: int) -> None:
    ring = LogRing(log)
    line = b"an old line of the first lap\n"
    os.write(log, line * (LAP // len(line) + 1))
    os.write(log, b"the last of the first lap\n")
    ring.set_back()
    assert position(log) == 0
    os.write(log, b"the first of the second lap\n")
    assert read_tail(log, 3).splitlines() == [
        "an old line of the first lap",
        "the last of the first lap",
        "the first of the second lap",
    ]


def test_what_an_older_and_longer_lap_left_is_not_taken_for_new(log: int) -> None:
    ring = LogRing(log)
    os.write(log, b"oldest\n" * (2 * LAP // 7))
    ring.set_back()
    os.write(log, b"middle\n" * (LAP // 7 + 1))
    ring.set_back()
    os.write(log, b"newest\n")
    assert read_tail(log, 4).splitlines() == ["middle", "middle", "middle", "newest"]


def test_the_kernel_bounds_the_file(log: int) -> None:
    ring = LogRing(log)
    assert os.write(log, b"x" * (CAPACITY + 1)) == CAPACITY
    with pytest.raises(PermissionError):
        os.write(log, b"y")
    with pytest.raises(PermissionError):
        os.ftruncate(log, CAPACITY + 1)
    ring.set_back()
    os.write(log, b"after the flood\n")
    assert read_tail(log, 20).splitlines()[-1] == "after the flood"


def test_a_long_line_is_cut(log: int) -> None:
    os.write(log, b"x" * (10 * TAIL_BYTES) + b"\n")
    assert len(read_tail(log, 20)) < TAIL_BYTES


def test_bytes_that_are_no_text(log: int) -> None:
    os.write(log, b"\xff\0\xfe ok\n")
    assert read_tail(log, 1) == "\ufffd\ufffd ok"


def test_new_text_within_a_lap_and_into_the_next(log: int) -> None:
    ring = LogRing(log)
    assert read_new(log, 0) == ("", 0)
    os.write(log, b"first\n")
    assert read_new(log, 0) == ("first\n", 6)
    os.write(log, b"x" * LAP)
    _, seen = read_new(log, 6)
    os.write(log, b"end of lap\n")
    ring.set_back()
    os.write(log, b"new lap\n")
    assert read_new(log, seen) == ("end of lap\nnew lap\n", 8)
    assert read_new(log, 8) == ("", 8)
