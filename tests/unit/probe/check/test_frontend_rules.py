"""What the rules for a front-end's messages see."""

from typing import Any

import msgspec
import pytest

from muro.probe.check.frontend_rules import FrontendWatch
from muro.probe.check.report import Findings
from muro.wire.codec import RequestEncoder
from muro.wire.control import StartDPWave, UtilityRequest
from muro.wire.request import EngineCoreRequest, SamplingParams
from tests.support.vectors import vectors


def watched(*messages: list[Any], client: int = 0) -> Findings:
    findings = Findings()
    watch = FrontendWatch(findings)
    for message in messages:
        watch.take(client, message)
    return findings


def add(request_id: str = "a", client: int = 0) -> list[Any]:
    request = EngineCoreRequest(request_id, [1], sampling_params=SamplingParams(), client_index=client)
    return RequestEncoder().add(request)


def call(call_id: int) -> list[Any]:
    return RequestEncoder().call(UtilityRequest(0, call_id, "is_sleeping", []))


def broken(findings: Findings) -> set[str]:
    names = ("messages", "add_layout", "client_index", "request_ids", "call_ids", "no_waves")
    return {name for name in names if findings.failed(name)}


@pytest.mark.parametrize(
    ("messages", "rules"),
    [
        ([add("a"), add("b"), call(1), call(2)], set()),
        ([add("a"), RequestEncoder().abort(["a"]), add("a")], set()),
        ([add("a"), add("a")], {"request_ids"}),
        ([add("a", client=1)], {"client_index"}),
        ([call(1), call(1)], {"call_ids"}),
        ([call(-1)], {"call_ids"}),
        ([RequestEncoder().start_wave(StartDPWave(0))], {"no_waves"}),
        ([[b"\x00", b"\xc1"]], {"add_layout"}),
        ([[b"\x07", b"\x90"]], {"messages"}),
        ([[b"\x03", msgspec.msgpack.encode([0, 1, "x", {}])]], {"messages"}),
        ([[b"\x00", msgspec.msgpack.encode(["a", [1], None, {}])]], {"add_layout"}),
    ],
)
def test_rules(messages: list[list[Any]], rules: set[str]) -> None:
    assert broken(watched(*messages)) == rules


@pytest.mark.parametrize("file", ["add_requests-0.25.1", "add_requests-0.33.0"])
def test_what_released_front_ends_send_keeps_the_rules(file: str) -> None:
    for vector in vectors():
        if vector.file == file:
            findings = watched(vector.bytes)
            assert not broken(findings) - {"client_index"}, (vector.name, vars(findings))
