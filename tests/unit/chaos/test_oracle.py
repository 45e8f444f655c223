"""The judge of the fault runs: it sees each way in which a request can go wrong, and excuses what has a cause."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from muro.engines.sim.text import continuation
from tests.chaos.oracle import DOCUMENTED, NO_FILES, Asked, Ledger, Oracle, Seen, Verdict, Window
from tests.chaos.report import Growing, Result, summary
from tests.chaos.requests import POISONS, draw, draw_unknown, poison

ASKED = Asked(kind="stream", body=b"", choices=2, text="abcdef", tokens=12)
WELL = {"status": 200, "texts": {0: "abcdef", 1: "abcdef"}, "finishes": {0: "length", 1: "length"}, "tokens": 12}
KILL = Window("kill", 1.0, 3.0, True)
SLOW = Window("slow step", 1.0, 3.0, False)
DEAD = {"code": "engine_dead", "message": "killed", "whole": True}


def judge(seen: dict[str, Any], *windows: Window, asked: Asked = ASKED, replay: bool = False, **more: Any) -> Verdict:
    given = {"began": 1.5, "ended": 2.0, "whole": True} | seen | more
    return Oracle(replay=replay, patience=30.0, rate=50.0).judge(asked, Seen(**given), windows)


def test_all_that_was_asked_for() -> None:
    assert judge(WELL) == Verdict("complete")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (WELL | {"texts": {0: "abcdef", 1: "abXdef"}}, "choice 1 is wrong from letter 2 on: 'Xdef', not 'cdef'"),
        (WELL | {"texts": {0: "abcdef", 1: "abcdefg"}}, "choice 1 is wrong from letter 6 on: 'g', not ''"),
        (WELL | {"texts": {0: "abcdef", 1: "ababcdef"}}, "wrong from letter 2"),
        (WELL | {"texts": {0: "abcdef", 1: "abcde"}}, "choice 1 has 5 of 6 letters, and no error"),
        (WELL | {"texts": {0: "abcdef"}}, "choice 1 has 0 of 6"),
        (WELL | {"texts": {2: "a"}}, "choice 2, which was never asked for"),
        (WELL | {"finishes": {0: "length"}}, "choice 1 finished with None"),
        (WELL | {"finishes": {0: "length", 1: "abort"}}, "choice 1 finished with 'abort'"),
        (WELL | {"tokens": 11}, "says 11 tokens, not 12"),
        (WELL | {"after_end": True}, "after the end"),
        (WELL | {"whole": False}, "broke off without a word"),
        (WELL | {"lost": "reset"}, "reset"),
        (WELL | {"ended": 99.0}, "it took 97.5 s"),
    ],
)
def test_what_is_wrong_is_seen(seen: dict[str, Any], words: str) -> None:
    assert words in judge(seen, KILL).violation


@pytest.mark.parametrize(("begun", "outcome"), [({}, "refused"), ({"texts": {0: "ab"}}, "failed")])
def test_a_death_accounts_for_an_error(begun: dict[str, Any], outcome: str) -> None:
    seen = DEAD | {"status": 200 if begun else 503, "retry_after": True} | begun
    assert judge(seen, SLOW, KILL) == Verdict(outcome)
    assert "without a cause" in judge(seen, SLOW).violation
    assert "without a cause" in judge(seen, Window("kill", 5.0, 6.0, True)).violation
    assert "wrong from letter" in judge(seen | {"texts": {0: "b"}}, KILL).violation


@pytest.mark.parametrize("replay", [False, True])
def test_who_finds_the_queue_full_behind_a_long_outage_is_refused(replay: bool) -> None:
    seen = {"status": 503, "code": "overloaded", "message": "full", "retry_after": True, "began": 44.0, "ended": 44.1}
    assert judge(seen, Window("kill", 1.0, 45.0, True), replay=replay) == Verdict("refused")
    assert "without a cause" in judge(seen, Window("kill", 10.0, 45.0, True), replay=replay).violation
    assert "without a cause" in judge(seen, Window("slow step", 1.0, 45.0, False), replay=replay).violation


def test_with_replay_it_takes_two() -> None:
    seen = DEAD | {"status": 200}
    assert "without a cause" in judge(seen, KILL, SLOW, replay=True).violation
    assert judge(seen, KILL, KILL, replay=True).violation == ""
    assert judge(seen | {"code": "request_failed"}, KILL, KILL, replay=True).violation == ""
    assert "without a cause" in judge(seen | {"code": "request_failed"}, KILL, KILL).violation


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"code": "internal", "status": 500}, "not documented"),
        ({"code": "", "status": 502}, "not documented"),
        ({"code": "engine_dead", "status": 500}, "with status 500, not 503"),
        ({"code": "engine_dead", "status": 503}, "without Retry-After"),
        ({"code": "invalid_request", "status": 400}, "without a cause"),
    ],
)
def test_errors_that_are_none_of_ours(seen: dict[str, Any], words: str) -> None:
    assert words in judge(seen, KILL).violation


def test_a_caller_who_leaves() -> None:
    leaves = msgspec.structs.replace(ASKED, kind="leaves", leave_after=0.5)
    assert judge({"status": 200, "texts": {0: "ab"}, "whole": False}, asked=leaves) == Verdict("left")
    assert judge(WELL, asked=leaves) == Verdict("complete")
    assert "wrong from" in judge({"status": 200, "texts": {0: "b"}, "whole": False}, asked=leaves).violation
    assert judge({"whole": False, "lost": "refused"}, asked=leaves).violation == "refused"


def test_bad_requests() -> None:
    bad = Asked(kind="bad", body=b"", stream=False)
    assert judge({"code": "unsupported_option", "status": 400}, asked=bad) == Verdict("bad")
    assert judge(DEAD | {"status": 503, "retry_after": True}, KILL, asked=bad) == Verdict("bad")
    assert "ended with engine_dead" in judge(DEAD | {"status": 503, "retry_after": True}, asked=bad).violation
    assert "was served" in judge({"status": 200}, asked=bad).violation


def test_a_request_with_a_fault_of_its_own() -> None:
    own = msgspec.structs.replace(ASKED, kind="poison", fault="garble")
    assert judge({"code": "request_failed", "status": 200}, asked=own) == Verdict("its own fault")
    assert "without a cause" in judge({"code": "engine_dead", "status": 200}, asked=own).violation
    lethal = msgspec.structs.replace(own, fault="hang", lethal=True)
    assert judge({"code": "engine_dead", "status": 200}, asked=lethal) == Verdict("its own fault")
    assert "not documented" in judge({"code": "internal", "status": 200}, asked=lethal).violation


def test_without_files_connections_are_closed() -> None:
    seen = {"whole": False, "lost": "reset"}
    assert judge(seen, Window(NO_FILES, 1.0, 3.0, False)) == Verdict("no room")
    assert judge(seen | {"status": 200}, Window(NO_FILES, 1.0, 3.0, False)).violation == "reset"


def test_every_request_is_accounted_for() -> None:
    ledger = Ledger(Oracle(replay=False, patience=30.0, rate=50.0))
    first, second, third = (ledger.send(ASKED) for _ in range(3))
    ledger.receive(second, Seen(began=0.0, ended=1.0, whole=True, **WELL))  # type: ignore[arg-type]
    ledger.receive(first, Seen(began=0.0, ended=1.0, whole=False))
    assert (ledger.sent, len(ledger)) == (3, 1)
    with pytest.raises(KeyError):
        ledger.receive(first, Seen(began=0.0))
    outcomes, violations = ledger.settle([])
    assert outcomes == {"complete": 1, "lost": 1} and len(violations) == 1 and "request 1 (stream" in violations[0]
    assert ledger.settle([]) == ({}, [])
    assert ledger.stuck() == [f"request {third} (stream) never ended"]


def test_requests_come_alike_for_one_seed_and_their_texts_are_foretold() -> None:
    drawn = [draw(random.Random(f"7 {n}"), n) for n in range(400)]
    assert drawn == [draw(random.Random(f"7 {n}"), n) for n in range(400)]
    assert {asked.kind for asked in drawn} == {"stream", "whole", "leaves", "bad"}
    assert {asked.finish for asked in drawn} == {"length", "stop"}
    for asked in drawn:
        if asked.kind != "bad":
            body = msgspec.json.decode(asked.body)
            whole = bytes(continuation(body["prompt"].encode(), body["max_tokens"])).decode()
            stops = body.get("stop") or ["\0"]
            assert asked.text == whole.partition(stops[0])[0]
            length = len(asked.text) + (len(stops[0]) if asked.finish == "stop" else 0)
            assert asked.tokens == asked.choices * length


def test_requests_to_a_model_foretell_no_words() -> None:
    for n in range(100):
        asked = draw_unknown(random.Random(n), n)
        body = msgspec.json.decode(asked.body) if asked.kind != "bad" else {}
        assert asked.text is None and asked.tokens == asked.choices * body.get("max_tokens", 0)
        assert "stop" not in body
    unknown = msgspec.structs.replace(ASKED, text=None)
    assert judge(WELL | {"texts": {0: "anything", 1: "else"}}, asked=unknown) == Verdict("complete")
    assert "11 tokens" in judge(WELL | {"tokens": 11}, asked=unknown).violation


@pytest.mark.parametrize("name", POISONS)
def test_requests_with_faults(name: str) -> None:
    asked = poison(random.Random(1), 1, name)
    assert asked.kind == "poison" and asked.lethal == POISONS[name][1]
    assert msgspec.json.decode(asked.body)["vllm_xargs"] == {"fault": POISONS[name][0]}


def test_growth_and_summary() -> None:
    size = Growing(rss_mib=50, fds=40, threads=5, shm=0, sockets=3, processes=2)
    result = Result(requests=3, sizes=[size, size, msgspec.structs.replace(size, rss_mib=80, sockets=50)])
    assert [problem.split()[0] for problem in result.growth_problems()] == ["rss_mib", "sockets"]
    assert Result().growth_problems() == ["no two quiet moments to compare"]
    result.outcomes["complete"], result.faults["kill"], result.recoveries["kill"] = 3, 2, [0.5, 0.7]
    text = summary(result)
    assert "serving again after 0.70 s (median), 0.70 s (most)" in text and "complete" in text
    assert all(400 <= status < 600 for status in DOCUMENTED.values())
