"""A recording in words: every kind of message, filters, whole fields, JSON; and nothing that steers a terminal."""

import json
from typing import Any

import pytest

from muro.probe.reading import Kind, Reader
from muro.probe.recording import Direction, Kept, KeptFrame, Record, Role
from muro.probe.show import Filter, heading, json_lines, lines, peer_name, printable
from muro.wire.codec import OutputEncoder, RequestEncoder
from muro.wire.control import StartDPWave, UtilityRequest
from muro.wire.frames import COORDINATOR_READY, ENGINE_CORE_DEAD, SUBSCRIBE
from muro.wire.output import EngineCoreOutputs, FinishReason, UtilityOutput
from muro.wire.releases import LAYOUTS
from muro.wire.stats import SchedulerStats
from tests.support.asking import ask, output
from tests.support.vectors import Vector, vectors
from tests.support.wires import HEADER, PEER, TO_ENGINE, TO_FRONTEND, added, gave, joining, read, record

NASTY = "\x1b[2J\x07\u202e\r\n"


def sent(message: EngineCoreOutputs, **more: Any) -> Record:
    return record(Role.OUTPUT, TO_FRONTEND, *OutputEncoder().encode(message, bytearray()), **more)


def shown(*records: Record, wanted: Filter | None = None, full: bool = False) -> list[str]:
    return list(lines(read(records), wanted or Filter(), full=full))


def one(*records: Record) -> str:
    (line,) = shown(*records)
    return line


def test_a_joining() -> None:
    hello, init, response, ready = shown(*joining())
    assert hello == f"{0.1:12.6f}     <- E0   handshake hello     local=false headless=true"
    assert "-> E0   handshake init      1 clients: tcp://127.0.0.1:3 tcp://127.0.0.1:4" in init
    assert " c0 <- E0   input     response  " in response
    assert 'vllm_version="0.25.1" max_model_len=128' in response
    assert " ready " in ready


def test_a_request_and_its_answer() -> None:
    add = one(added(ask("r-1", 7, [1, 2, 3], temperature=0.5)))
    assert "add       r-1 prompt 3 tokens (1 2 3) temperature=0.5 max_tokens=7 [20 fields, " in add
    news = gave(output("r-1", *range(20)), output("r-2", 5, finish=FinishReason.STOP))
    assert one(news).endswith("r-1 +20 tokens (0 1 2 3 4 5 6 7 ...), r-2 +1 tokens (5) STOP")


def test_what_was_withheld_is_said() -> None:
    hidden = added(ask("r-1", 7, [0, 0, 0]), withheld=["prompt_token_ids"])
    assert "prompt 3 tokens max_tokens=7" in one(hidden)
    assert one(hidden).endswith("(withheld: prompt_token_ids)")
    assert "withheld" not in one(gave(output("r-1", 0), withheld=["new_token_ids"])), "it is so in all of them"
    assert "prompt 1 tokens (7) max_tokens=16 [" in one(added(ask("r-1", 16, [7]))), "told although it is the default"


def test_control_messages() -> None:
    encoder = RequestEncoder()
    assert one(record(Role.INPUT, TO_ENGINE, *encoder.abort(["r-1", "r-2"]))).endswith("abort     r-1 r-2")
    call = UtilityRequest(0, 2**63 + 1, "sleep", [1, "abort"])
    assert one(record(Role.INPUT, TO_ENGINE, *encoder.call(call))).endswith(f'sleep(1, "abort") call {2**63 + 1}')
    wave = record(Role.INPUT, TO_ENGINE, *encoder.start_wave(StartDPWave(3, b"\1\0")))
    assert one(wave).endswith('wave 3 exclude "0100"')
    assert one(sent(EngineCoreOutputs(utility_output=UtilityOutput(5, None, [None, True])))).endswith(
        "answer    call 5 gave true"
    )
    assert one(sent(EngineCoreOutputs(utility_output=UtilityOutput(5, "no")))).endswith("answer    call 5 failed: no")
    assert one(sent(EngineCoreOutputs(wave_complete=3))).endswith("wave      wave_complete=3")
    stats = EngineCoreOutputs(scheduler_stats=SchedulerStats(num_running_reqs=2))
    assert one(sent(stats)).endswith("stats     running=2 waiting=0 kv=0.000")
    assert one(record(Role.OUTPUT, TO_FRONTEND, ENGINE_CORE_DEAD)).endswith("dead")
    assert one(record(Role.COORDINATOR_INPUT, TO_ENGINE, COORDINATOR_READY, client=None)).endswith("gate")
    assert one(record(Role.COORDINATOR_INPUT, TO_FRONTEND, SUBSCRIBE, client=None)).endswith("subscribe")
    event = Record(1.0, Direction.EVENT, Role.INPUT, PEER, 0, 0, [], note="engine 0 has gone")
    assert one(event).endswith("-- E0   input     event     engine 0 has gone")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"\0", b"\xc1"], "add       unreadable: request: "),
        ([b"\x09", b"\x90"], "unknown   unreadable: message of unknown type '09'; 1 bytes: 09 | 1 bytes: 90"),
        ([b"\0"], "must have a type and a payload"),
        ([b"\xff" * 100, b""], "100 bytes: " + "ff" * 48 + " ..."),
    ],
)
def test_what_cannot_be_read_is_shown_in_hex_with_the_reason(frames: list[bytes], words: str) -> None:
    assert words in one(record(Role.INPUT, TO_ENGINE, *frames))


def test_what_was_not_kept_says_why() -> None:
    for kept, words in ((Kept.HASHED, "only its hash was recorded"), (Kept.CUT, "too large to be recorded whole")):
        one_record = Record(0.0, TO_FRONTEND, Role.OUTPUT, PEER, 0, 0, [KeptFrame(b"hh", 300, kept)])
        assert words in one(one_record) and "300 bytes: " in one(one_record)


def test_nothing_of_a_peer_steers_a_terminal() -> None:
    request = ask(NASTY, 3)
    request.external_req_id = NASTY
    records = [
        added(request),
        gave(output(NASTY, 1)),
        sent(EngineCoreOutputs(utility_output=UtilityOutput(1, NASTY))),
        sent(EngineCoreOutputs(utility_output=UtilityOutput(1, None, [None, {NASTY: NASTY}]))),
        record(Role.INPUT, TO_ENGINE, *RequestEncoder().call(UtilityRequest(0, 1, NASTY, [NASTY]))),
        record(Role.HANDSHAKE, TO_FRONTEND, NASTY.encode()),
        Record(0.0, Direction.EVENT, Role.INPUT, NASTY.encode(), 0, 0, [], note=NASTY),
    ]
    for line in shown(*records, full=True):
        assert line.isprintable(), ascii(line)
    for line in json_lines(read(records), Filter(), HEADER, full=True):
        assert line.isascii() and line.isprintable()
    assert printable("plain ü") == "plain ü"
    assert printable("a\x1b\udcff") == "a\\x1b\\udcff"


def test_filters() -> None:
    records = [
        *joining(),
        added(ask("cmpl-1-abcd1234")),
        added(ask("cmpl-12")),
        gave(output("cmpl-1-abcd1234", 1), output("cmpl-12", 2)),
        record(Role.INPUT, TO_ENGINE, *RequestEncoder().abort(["cmpl-12"])),
    ]
    found = shown(*records, wanted=Filter("cmpl-1"))
    assert len(found) == 2 and not any("cmpl-12" in line for line in found)
    assert shown(added(ask("abc-0-0")), added(ask("abcd")), wanted=Filter("chatcmpl-abc")) == shown(
        added(ask("abc-0-0"))
    )
    found = shown(*records, wanted=Filter(kinds=frozenset({Kind.ABORT, Kind.HELLO})))
    assert [" hello " in line or " abort " in line for line in found] == [True, True]


def test_all_fields() -> None:
    details = shown(added(ask("r-1", 7, list(range(100)))), full=True)[1:]
    assert any(line.strip() == 'request_id = "r-1"' for line in details)
    assert any("99]" in line for line in details), "nothing is cut"
    unreadable = shown(record(Role.INPUT, TO_ENGINE, b"\0", b"\xc1" * 100), full=True)
    assert "c1" * 100 in unreadable[1]


def test_json() -> None:
    messages = read([added(ask("r-1", 7, [1, 2])), record(Role.OUTPUT, TO_FRONTEND, b"\xc1")])
    good, bad = map(json.loads, json_lines(messages, Filter(), HEADER, full=True))
    assert (good["kind"], good["ids"], good["engine"], good["direction"]) == ("add", ["r-1"], "E0", "to-engine")
    assert good["time"].startswith("2023-11-14T22:13:21") and good["fields"]["prompt_token_ids"] == [1, 2]
    assert bad["fault"] and bad["frames"] == ["whole c1"] and bad["fields"] is None


def test_the_heading() -> None:
    assert heading(HEADER) == (
        "recorded 2023-11-14T22:13:20.000+00:00 between tcp://127.0.0.1:2 and engines at tcp://127.0.0.1:1, "
        "without prompts"
    )
    assert peer_name(b"\2\1") == "E258" and peer_name(b"\0ab") == "x006162"


KINDS = {"add_requests": {Kind.ADD}, "outputs": {Kind.OUTPUTS, Kind.STATS, Kind.ANSWER, Kind.WAVE, Kind.DEAD}}


@pytest.mark.parametrize(
    "vector", [v for v in vectors() if v.file.startswith(tuple(KINDS))], ids=lambda v: f"{v.file}-{v.name}"
)
def test_messages_of_every_release(vector: Vector) -> None:
    role, direction = (Role.INPUT, TO_ENGINE) if vector.file.startswith("add") else (Role.OUTPUT, TO_FRONTEND)
    message = Reader(LAYOUTS[f"0.{vector.minor}"]).read(record(role, direction, *vector.bytes))
    expected = KINDS[vector.file.rpartition("-")[0]]
    if not message.fault:  # some hold what is refused, as pickled types
        assert message.kind in expected
    (line,) = lines([message], Filter())
    assert line.isprintable() and ("unreadable" in line) == bool(message.fault)
