"""Counts, records and events; and what goes wrong while recording stays here."""

import io
import logging

import pytest

from muro.probe.journal import Journal
from muro.probe.recording import Direction, Kept, Recorder, Role, read_recording
from muro.probe.withholding import Withholder
from tests.support.wires import HEADER, PEER, TO_ENGINE, TO_FRONTEND


def test_without_a_recorder_it_counts() -> None:
    journal = Journal(None, None, 100)
    for _ in range(3):
        journal.message(Role.INPUT, TO_ENGINE, PEER, 0, 0, [b"\1", b"1234"])
    assert journal.messages[Role.INPUT, TO_ENGINE] == 3 and journal.bytes[Role.INPUT, TO_ENGINE] == 15


def test_messages_and_events_are_recorded_in_their_order() -> None:
    now = iter([10.0, 11.0, 12.5])
    file, told = io.BytesIO(), list[str]()
    recorder = Recorder(file, 1 << 20, clock=lambda: next(now))
    recorder.begin(HEADER)
    journal = Journal(recorder, None, 100, told.append)
    journal.event(Role.HANDSHAKE, PEER, 3, None, "it dials")
    journal.message(Role.OUTPUT, TO_FRONTEND, PEER, 3, 1, [b"\x90"])
    event, message = read_recording(io.BytesIO(file.getvalue()), "it").records()
    assert (event.at, event.direction, event.note, event.link) == (1.0, Direction.EVENT, "it dials", 3)
    assert (message.at, message.client, message.payloads) == (2.5, 1, [b"\x90"])
    assert told == ["it dials"]


class Broken(Withholder):
    def keep(self, *given: object) -> object:  # type: ignore[override]
        raise RuntimeError("a bug")


def test_a_bug_costs_the_content_of_one_record(caplog: pytest.LogCaptureFixture) -> None:
    file = io.BytesIO()
    recorder = Recorder(file, 1 << 20)
    recorder.begin(HEADER)
    with caplog.at_level(logging.CRITICAL):
        Journal(recorder, Broken(100), 100).message(Role.INPUT, TO_ENGINE, PEER, 0, 0, [b"\1", b"secret"])
    assert b"secret" not in file.getvalue()
    (record,) = read_recording(io.BytesIO(file.getvalue()), "it").records()
    assert [frame.kept for frame in record.frames] == [Kept.HASHED] * 2 and record.withheld == ["message"]


def test_the_end_of_a_recording_is_told_once() -> None:
    told = list[str]()
    recorder = Recorder(io.BytesIO(), 200)
    recorder.begin(HEADER)
    journal = Journal(recorder, None, 1000, told.append)
    for _ in range(5):
        journal.message(Role.INPUT, TO_ENGINE, PEER, 0, 0, [b"\1", bytes(500)])
    assert len(told) == 1 and "limit of 200 bytes" in told[0]
    assert journal.messages[Role.INPUT, TO_ENGINE] == 5 and recorder.missed == 5
