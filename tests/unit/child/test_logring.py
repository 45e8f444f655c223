import os
import threading
from collections.abc import Callable, Iterator

import pytest

from muro.child.logring import CAPACITY, KEPT, LAP, TAIL_BYTES, LogRing, create_log, read_new, read_tail, set_back


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


def test_the_newest_lines_survive_the_lap(log: int) -> None:
    ring = LogRing(log)
    line = b"an old line of the first lap\n"
    os.write(log, line * (LAP // len(line) + 1))
    os.write(log, b"the last of the first lap\n")
    ring.set_back()
    assert KEPT - len(line) <= position(log) <= KEPT
    os.write(log, b"the first of the second lap\n")
    assert read_tail(log, 3).splitlines() == [
        "an old line of the first lap",
        "the last of the first lap",
        "the first of the second lap",
    ]
    assert os.pread(log, 100, 0).startswith(line)  # a lap begins with a whole line


def test_what_an_older_and_longer_lap_left_is_gone(log: int) -> None:
    ring = LogRing(log)
    for size in (30 * LAP, 2 * LAP):
        os.write(log, b"x" * 99 + b"\n")
        os.write(log, b"oldest\n" * (size // 7))
        assert os.fstat(log).st_blocks * 512 >= size
        ring.set_back()
        assert os.fstat(log).st_blocks * 512 <= KEPT + 8192
        assert not os.pread(log, LAP, position(log)).strip(b"\0")
    os.write(log, b"middle\n" * (LAP // 7 + 1))
    ring.set_back()
    os.write(log, b"newest\n")
    assert read_tail(log, 4).splitlines() == ["middle", "middle", "middle", "newest"]


def test_a_lap_of_one_endless_line(log: int) -> None:
    os.write(log, b"x" * (LAP + 1))
    set_back(log)
    assert position(log) == KEPT
    assert read_tail(log, 1) == "x" * TAIL_BYTES


def test_a_writer_that_is_killed_while_it_sets_back_leaves_its_last_lines(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.write(log, b"a line\n" * (LAP // 7 + 1))
    monkeypatch.setattr(os, "lseek", killed(os.lseek))
    with pytest.raises(KeyboardInterrupt):
        set_back(log)
    monkeypatch.undo()
    assert position(log) > LAP
    assert read_tail(log, 2) == "a line\na line"


def killed(lseek: Callable[[int, int, int], int]) -> Callable[[int, int, int], int]:
    def until_the_position_would_change(descriptor: int, offset: int, whence: int) -> int:
        if whence == os.SEEK_SET:
            raise KeyboardInterrupt
        return lseek(descriptor, offset, whence)

    return until_the_position_would_change


def test_nothing_is_lost_while_two_set_back_and_one_writes(log: int) -> None:
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            set_back(log)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    lines = 60_000
    try:
        for number in range(lines):
            os.write(log, b"line %d, long enough to fill a lap before long: %s\n" % (number, b"." * 60))
    finally:
        done.set()
        for looker in lookers:
            looker.join()
    seen = [int(line.split()[1].strip(",")) for line in read_tail(log, 100).splitlines()[1:]]
    assert seen[-1] == lines - 1
    assert len(set(seen)) == len(seen) > 50


def test_the_kernel_bounds_the_file(log: int) -> None:
    ring = LogRing(log)
    assert os.write(log, b"x" * (CAPACITY + 1)) == CAPACITY
    with pytest.raises(PermissionError):
        os.write(log, b"y")
    with pytest.raises(PermissionError):
        os.ftruncate(log, CAPACITY + 1)
    ring.set_back()
    os.write(log, b"after the flood\n")
    assert read_tail(log, 20).endswith("xafter the flood")


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
    os.write(log, (b"x" * 63 + b"\n") * (LAP // 64))
    _, seen = read_new(log, 6)
    os.write(log, b"end of lap\n")
    ring.set_back()
    os.write(log, b"new lap\n")
    text, now = read_new(log, seen)
    assert text.endswith("x\nend of lap\nnew lap\n")
    assert len(text) <= KEPT + 100
    assert read_new(log, now) == ("", now)
