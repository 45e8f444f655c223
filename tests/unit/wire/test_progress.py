import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import RemoteProtocolError
from muro.wire.progress import (
    DROPPED,
    ENDED,
    HEADER,
    MAX_PHASE_BYTES,
    PAGE_SIZE,
    PHASE,
    RECEIVED,
    STARTED,
    TURN,
    Progress,
    pack,
    phase_bytes,
    unpack,
)

U32 = st.integers(0, 2**32 - 1)
U63 = st.integers(0, 2**63 - 1)


@given(
    st.builds(
        Progress, pid=U32, generation=U32, phase=st.text(max_size=8), percent=st.floats(0, 100), phase_since_ns=U63,
        steps_started=U63, steps_ended=U63, step_started_ns=U63, step_ended_ns=U63, yielded=U63, tokens_out=U63,
        running=U32, waiting=U32, dropped_frames=U63, activity=st.text(max_size=8), activity_since_ns=U63,
        events_taken=U63, messages_begun=U63, messages_done=U63, events_queued=U63, ignored_clients=U63,
    )
)  # fmt: skip
def test_what_is_packed_is_unpacked(progress: Progress) -> None:
    page = pack(progress)
    assert len(page) == PAGE_SIZE
    assert unpack(page) == progress


def test_sections_do_not_overlap_and_each_lies_in_cache_lines_of_its_own() -> None:
    sections = [HEADER, PHASE, STARTED, ENDED, DROPPED, TURN, RECEIVED]
    for section, following in itertools.pairwise(sections):
        assert section.offset + section.size <= following.offset
        assert following.offset % 64 == 0
    assert RECEIVED.offset + RECEIVED.size <= PAGE_SIZE


@pytest.mark.parametrize("section", [HEADER, PHASE, STARTED, ENDED, DROPPED, TURN, RECEIVED])
def test_a_section_caught_half_written_is_noticed(section: object) -> None:
    page = bytearray(pack(Progress(pid=1, phase="loading")))
    page[section.offset] += 1  # type: ignore[attr-defined]
    assert unpack(bytes(page)) is None


def test_a_page_never_written_shows_nothing() -> None:
    assert unpack(bytes(PAGE_SIZE)) == Progress()


@pytest.mark.parametrize("page", [b"", bytes(100), b"\x00" * 8 + b"x" * (PAGE_SIZE - 8)])
def test_other_memory_is_refused_or_never_whole(page: bytes) -> None:
    if len(page) < PAGE_SIZE:
        with pytest.raises(RemoteProtocolError, match="progress page of"):
            unpack(page)
    else:
        assert unpack(page) is None
    wrong = bytearray(pack(Progress(pid=1)))
    wrong[8] ^= 1
    with pytest.raises(RemoteProtocolError, match="not a progress page"):
        unpack(bytes(wrong))


@given(st.text())
def test_a_phase_is_cut_between_characters(text: str) -> None:
    data = phase_bytes(text)
    assert len(data) <= MAX_PHASE_BYTES
    assert text.encode("utf-8", "replace").startswith(data)
    data.decode()


def test_stepping() -> None:
    assert Progress(steps_started=2, steps_ended=1).stepping
    assert not Progress(steps_started=2, steps_ended=2).stepping


def test_what_comes_before_the_colon_is_the_phase() -> None:
    assert Progress(phase="loading: weights").phase_word == "loading"
    assert Progress(phase="serving").phase_word == "serving"
