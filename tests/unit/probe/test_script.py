"""From a recording to what is played again: who asked what, what came of it, and how a live answer differs."""

import json
from typing import Any

import msgspec
import pytest

from muro.errors import ConfigError
from muro.probe.parts import Parts
from muro.probe.recording import Record, Role
from muro.probe.script import Script, made_up, script_of
from muro.probe.verdict import (
    SHOWN,
    Heard,
    Pace,
    Result,
    compare_asking,
    compare_call,
    compare_request,
    notes_of,
)
from muro.wire.codec import OutputEncoder, RequestEncoder
from muro.wire.control import UtilityRequest
from muro.wire.output import EngineCoreOutputs, FinishReason, UtilityOutput
from tests.support.asking import ask, output
from tests.support.wires import PEER, TO_ENGINE, TO_FRONTEND, added, gave, joining, read, record

END = FinishReason.LENGTH


def script(*records: Record) -> Script:
    return script_of(read([*joining(), *records]))


def called(method: str, *args: Any, call_id: int = 1, **more: Any) -> Record:
    return record(Role.INPUT, TO_ENGINE, *RequestEncoder().call(UtilityRequest(0, call_id, method, list(args))), **more)


def answered(answer: UtilityOutput, **more: Any) -> Record:
    message = EngineCoreOutputs(utility_output=answer)
    return record(Role.OUTPUT, TO_FRONTEND, *OutputEncoder().encode(message, bytearray()), **more)


def test_requests_with_their_answers() -> None:
    found = script(added(ask("a", 2)), gave(output("a", 5), at=2.0), gave(output("a", 6, finish=END), at=3.0))
    (asked,) = found.asked
    assert (asked.tokens, asked.finish, asked.aborted) == ([5, 6], END, False)
    assert [at for at, _ in asked.outputs] == [2.0, 3.0]
    (saying,) = found.said
    assert saying.frames == RequestEncoder().add(ask("a", 2)) and saying.asked is asked
    assert not found.made_up and notes_of(found) == []


def test_an_engine_is_what_it_said_of_itself() -> None:
    (engine,) = script().engines.values()
    assert msgspec.msgpack.decode(engine.hello)["status"] == "HELLO"
    assert msgspec.msgpack.decode(engine.ready)["status"] == "READY"
    assert msgspec.msgpack.decode(engine.response)["max_model_len"] == 128
    assert not engine.died


def test_prompts_that_were_withheld_are_made_up() -> None:
    hidden = added(ask("a", 2, [0, 0, 0]), withheld=["prompt_token_ids"])
    first, second = script(hidden), script(hidden)
    assert first.made_up and first.said == second.said, "always the same ones"
    frames = first.said[0].frames
    assert msgspec.msgpack.decode(frames[1])[1] == made_up(0, 3) == [1, 2, 3]
    assert "made-up" in notes_of(first)[0]
    assert all(0 < token < 1000 for token in made_up(10**9, 2000))


def test_what_was_not_recorded_is_not_played() -> None:
    hidden = record(
        Role.INPUT, TO_ENGINE, b"\3", msgspec.msgpack.encode([0, 1, "their_own", [None]]), withheld=["args"]
    )
    junk = record(Role.INPUT, TO_ENGINE, b"\x09", b"\x90")
    found = script(hidden, junk)
    assert found.skipped == 1 and "1 messages were not played" in notes_of(found)[0]
    assert [saying.frames for saying in found.said] == [[b"\x09", b"\x90"]], "junk of which all is known is"


def test_aborts() -> None:
    abort = record(Role.INPUT, TO_ENGINE, *RequestEncoder().abort(["a", "b"]), at=3.0)
    found = script(added(ask("a")), added(ask("b")), gave(output("b", 1, finish=END)), abort)
    assert [asked.aborted for asked in found.asked] == [True, False], "one that had ended is not"


def test_a_recording_without_an_engine() -> None:
    with pytest.raises(ConfigError, match="no engine has joined"):
        script_of(read([added(ask("a"))]))
    with pytest.raises(ConfigError, match="identity 616263, which is no rank"):
        script_of(read(joining(peer=b"abc")))


def test_a_death() -> None:
    found = script(record(Role.OUTPUT, TO_FRONTEND, b"ENGINE_CORE_DEAD"))
    assert found.engines[PEER].died


def test_parts_are_given_by_prompt_then_by_length_then_in_order() -> None:
    parts = Parts(
        script(added(ask("a", prompt=[1, 2])), added(ask("b", prompt=[3])), added(ask("c", prompt=[4]))), PEER
    )
    assert [given.request.request_id for given in (parts.of_request(ask("x", prompt=[4])),) if given] == ["c"]
    assert [given.request.request_id for given in (parts.of_request(ask("y", prompt=[9])),) if given] == ["b"]
    assert [given.request.request_id for given in (parts.of_request(ask("z", prompt=[9])),) if given] == ["a"]
    assert parts.of_request(ask("more")) is None and parts.left == []


def test_answers_of_calls_are_given_in_order_and_the_last_one_again() -> None:
    records = []
    for number, value in enumerate([False, True]):
        records += [
            called("is_sleeping", call_id=number),
            answered(UtilityOutput(number, None, [None, value])),
        ]
    parts = Parts(script(*records), PEER)
    live = UtilityRequest(0, 99, "is_sleeping", [])
    given = [parts.of_call(live) for _ in range(3)]
    assert [one.answer[1].result for one in given if one and one.answer] == [[None, False], [None, True], [None, True]]
    assert parts.of_call(UtilityRequest(0, 99, "sleep", [])) is None


@pytest.mark.parametrize(
    ("heard", "words"),
    [
        (Heard([5, 6], END, 1), []),
        (None, ["a: no answer; recorded: ended with LENGTH"]),
        (
            Heard([5], FinishReason.STOP, 1),
            ["a: ended with STOP; recorded: ended with LENGTH", "a: 1 tokens; recorded: 2"],
        ),
        (Heard([5, 7], END, 1), ["a: token 1 is 7; recorded: 6"]),
        (Heard([5, 6], END, 2), ["a: ended 2 times"]),
        (Heard([5, 6], None, 0), ["a: no end; recorded: ended with LENGTH"]),
    ],
)
def test_answers_are_compared(heard: Heard | None, words: list[str]) -> None:
    (asked,) = script(added(ask("a", 2)), gave(output("a", 5, 6, finish=END))).asked
    assert compare_request(asked, heard) == words


def test_made_up_tokens_are_not_compared() -> None:
    hidden = added(ask("a", 2, [0]), withheld=["prompt_token_ids"])
    (asked,) = script(hidden, gave(output("a", 0, 0, finish=END), withheld=["new_token_ids"])).asked
    assert compare_request(asked, Heard([8, 9], END, 1)) == []
    assert compare_request(asked, Heard([8], END, 1)) == ["a: 1 tokens; recorded: 2"]


def test_calls_are_compared() -> None:
    (one,) = script(called("is_sleeping"), answered(UtilityOutput(1, None, [None, False]))).called
    assert compare_call(one, UtilityOutput(7, None, [None, False])) == []
    assert compare_call(one, None) == ["call is_sleeping: no answer; recorded: gave False"]
    assert compare_call(one, UtilityOutput(7, "no")) == ["call is_sleeping: failed (no); recorded: gave False"]
    assert compare_call(one, UtilityOutput(7, None, [None, True])) == [
        "call is_sleeping: gave True; recorded: gave False"
    ]


def test_what_a_front_end_asked_is_compared() -> None:
    (asked,) = script(added(ask("a", prompt=[1, 2])), gave(output("a", 5, finish=END))).asked
    assert compare_asking(asked, ask("x", prompt=[1, 2]), aborted=False) == []
    assert compare_asking(asked, ask("x", prompt=[1, 3]), aborted=False) == ["x: another prompt than the recorded one"]
    assert compare_asking(asked, ask("x", prompt=[1]), aborted=True) == [
        "x: prompt of 1 tokens; recorded: 2",
        "x: aborted, the recorded one was not",
    ]


def test_a_result_in_words() -> None:
    assert Result({"requests": 2}, ["so"], []).text() == "2 requests\nso\nno difference"
    many = Result({"requests": 2}, [], [f"{n}\x1b" for n in range(SHOWN + 5)])
    assert "and 5 more" in many.text() and "\x1b" not in many.text() and f"{SHOWN + 5} differences" in many.text()
    assert len(json.loads(many.as_json())["differences"]) == SHOWN + 5


def test_pace() -> None:
    assert [Pace(speed).after(3.0) for speed in (1.0, 2.0, 0.0)] == [3.0, 1.5, 0.0]
    assert Pace(1.0).after(-1.0) == 0.0


@pytest.mark.parametrize("client", [1, -1])
def test_a_process_that_init_does_not_name_is_refused(client: int) -> None:
    with pytest.raises(ConfigError, match="INIT names 1 of them"):
        script(added(ask("a"), client=client))
