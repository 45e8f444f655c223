"""Recordings are judged by the rules for an engine's messages."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from muro.errors import ConfigError
from muro.probe.check.recorded import check_recording, judge_records
from muro.probe.check.report import Outcome, Report
from muro.probe.recording import Direction, Kept, KeptFrame, Record, Role
from muro.wire.arrays import Tensor
from muro.wire.codec import RequestEncoder
from muro.wire.frames import ENGINE_CORE_DEAD
from muro.wire.output import EngineCoreOutput, FinishReason, PrefillStats
from tests.support.asking import ask, output
from tests.support.wires import TO_ENGINE, TO_FRONTEND, added, gave, joining, record, recording_of

EMPTY = msgspec.msgpack.encode([0, [], None, 0.0])
MIXED = msgspec.msgpack.encode([0, [["r", [7]]], None, 0.0, [1, None, [None, True]]])
BOTH_WAVES = msgspec.msgpack.encode([0, [], None, 0.0, None, None, 1, 2])


def said(*frames: bytes, role: Role = Role.OUTPUT) -> Record:
    return record(role, TO_FRONTEND, *frames)


def aborted(*request_ids: str, client: int = 0) -> Record:
    return record(Role.INPUT, TO_ENGINE, *RequestEncoder().abort(list(request_ids)), client=client)


def prefilled(prompt: int) -> EngineCoreOutput:
    return EngineCoreOutput("r", [7], prefill_stats=PrefillStats(num_prompt_tokens=prompt))


def judged(records: Iterable[Record], release: str | None = "0.33") -> Report:
    return judge_records([*joining(clients=2), *records], "rec", release)


def failures(report: Report) -> set[str]:
    return {finding.case.name for finding in report.failures}


def test_what_is_in_order_holds() -> None:
    first = prefilled(3)
    last = output("r", 8, finish=FinishReason.STOP)
    report = judged([added(ask("r", prompt=[1, 2, 3])), gave(first), gave(last), said(ENGINE_CORE_DEAD)])
    assert report.passed, str(report)
    assert "7 messages of 1 engine(s) in rec" in str(report)
    held = {finding.case.name for finding in report.findings if finding.outcome is Outcome.HOLDS}
    assert {"readable", "not_empty", "one_kind", "layout", "engine_index", "one_end", "prefill"} <= held


@pytest.mark.parametrize(
    ("frames", "broken"),
    [
        ([EMPTY], "not_empty"),
        ([MIXED], "one_kind"),
        ([BOTH_WAVES], "one_kind"),
        ([b""], "readable"),
        ([b"\xc1"], "readable"),
        ([msgspec.msgpack.encode({"outputs": []})], "readable"),
        ([ENGINE_CORE_DEAD, b""], "death_notice"),
        ([msgspec.msgpack.encode([1, [["r", [7]]], None, 0.0])], "engine_index"),
        ([msgspec.msgpack.encode([0, [["r", [7]]], {"num_running_reqs": 1}, 0.0])], "stats"),
    ],
)
@pytest.mark.parametrize("role", [Role.OUTPUT, Role.COORDINATOR_OUTPUT])
def test_each_bad_message_is_found(frames: list[bytes], broken: str, role: Role) -> None:
    report = judged([added(ask("r")), said(*frames, role=role)])
    assert broken in failures(report) and not report.passed, str(report)


@pytest.mark.parametrize("role", [Role.HANDSHAKE, Role.INPUT])
def test_the_handshake_is_judged_too(role: Role) -> None:
    report = judged([said(b"\xc1", role=role)])
    assert failures(report) == {"readable"}


def test_what_was_not_of_the_protocol_and_kept_as_a_hash_is_found() -> None:
    hashed = [KeptFrame(b"h" * 16, 100, Kept.HASHED)]
    report = judged([Record(1.0, TO_FRONTEND, Role.OUTPUT, b"\0\0", 0, 0, hashed)])
    assert failures(report) == {"readable"}


def test_what_was_not_recorded_whole_is_told_and_not_judged() -> None:
    cut = [KeptFrame(b"\x94", 1 << 21, Kept.CUT)]
    report = judged([Record(1.0, TO_FRONTEND, Role.OUTPUT, b"\0\0", 0, 0, cut)])
    assert not report.failures and "1 more were too large" in str(report)


def test_more_after_an_end_is_found_unless_it_was_aborted() -> None:
    end = gave(output("r", 8, finish=FinishReason.STOP))
    assert failures(judged([added(ask("r")), end, end])) == {"one_end"}
    assert failures(judged([added(ask("r")), aborted("r", client=1), end, end])) == {"one_end"}
    assert not failures(judged([added(ask("r")), aborted("r"), end, end]))
    assert not failures(judged([added(ask("r")), end, added(ask("r")), end]))


def test_an_engine_that_joins_again_starts_anew() -> None:
    end = gave(output("r", 8, finish=FinishReason.STOP))
    later = [msgspec.structs.replace(one, link=1) for one in (*joining(), added(ask("r")), end)]
    report = judged([added(ask("r")), end, *later])
    assert not failures(report) and "of 2 engine(s)" in str(report)


def test_the_length_of_a_prompt_of_embeddings_is_not_known() -> None:
    embeds = Tensor("float32", [2, 40], bytes(320))
    request = msgspec.structs.replace(ask("r"), prompt_token_ids=None, prompt_embeds=embeds)
    first = prefilled(5)
    assert not failures(judged([added(request), gave(first)]))
    assert failures(judged([added(ask("r")), gave(first)])) == {"prefill"}


def test_messages_are_judged_as_the_release_of_the_front_end_reads_them() -> None:
    long = msgspec.msgpack.encode([0, [["r", [7], *[None] * 11, 0]], None, 0.0])
    records = [added(ask("r")), said(long)]
    assert "layout" in failures(judged(records, "0.25"))
    assert "layout" in failures(judged(records, None)), "the engine has said that it is of 0.25"
    assert not failures(judged(records, "0.28"))
    with pytest.raises(ConfigError, match=r"0\.1"):
        judged(records, "0.1")


def test_events_are_nobodys_words_and_nothing_is_no_pass(tmp_path: Path) -> None:
    event = Record(0.0, Direction.EVENT, Role.HANDSHAKE, b"\0\0", 0, None, [], note="engine 0 dials")
    (tmp_path / "rec").write_bytes(recording_of([event]))
    report = check_recording(str(tmp_path / "rec"))
    assert not report.failures and not report.passed
