"""What the rules for an engine's messages see, on messages as they lie on the wire."""

from typing import Any

import msgspec
import pytest

from muro.probe.check.engine_exam import ready_faults
from muro.probe.check.engine_rules import Course, Watch, layout_fault, logprobs_fault
from muro.probe.check.report import Findings, Outcome
from muro.wire.arrays import Tensor
from muro.wire.output import Logprobs
from muro.wire.releases import LAYOUTS
from tests.support.vectors import vectors

PREFILL = {"num_prompt_tokens": 3}


def row(length: int, **at: Any) -> list[Any]:
    fields: list[Any] = ["id", [1], *[None] * (length - 2)]
    for key, value in at.items():
        fields[int(key[1:])] = value
    return fields


@pytest.mark.parametrize(
    ("release", "outputs", "envelope", "reads"),
    [
        ("0.25", [row(13, _10=PREFILL, _12=0)], 8, True),
        ("0.25", [row(14, _11=PREFILL, _13=0)], 8, False),
        ("0.26", [row(14, _11=PREFILL, _13=0)], 8, True),
        ("0.33", [row(13, _10=PREFILL, _12=0)], 8, False),
        ("0.33", [row(13, _12=0)], 8, False),
        ("0.33", [row(12)], 8, True),
        ("0.25", [row(12)], 8, True),
        ("0.28", [row(17)], 8, False),
        ("0.33", [row(22)], 8, True),
        ("0.25", [row(2)], 9, False),
        ("0.33", [row(2)], 9, True),
        ("0.33", [row(2)], 10, False),
        ("0.25", [row(4, _3=[1, 2, 3, 4, None])], 8, False),
        ("0.29", [row(4, _3=[1, 2, 3, 4, None])], 8, True),
    ],
)
def test_arrays_of_a_release(release: str, outputs: list[Any], envelope: int, reads: bool) -> None:
    message = [0, outputs, *[None] * (envelope - 2)]
    assert (not layout_fault(message, LAYOUTS[release])) is reads


@pytest.mark.parametrize("release", ["0.25.1", "0.33.0"])
def test_what_released_engines_send_is_read(release: str) -> None:
    findings = Findings()
    watch = Watch(findings, LAYOUTS[release[:4]], 0)
    for vector in vectors():
        frames: list[Any] = vector.bytes
        if vector.file != f"outputs-{release}" or vector.name in ("empty_envelope", "engine_core_dead"):
            continue
        tree = msgspec.msgpack.decode(frames[0], ext_hook=lambda code, data: data)
        for output in tree[1]:
            watch.courses[0, output[0]] = Course(3)
        watch.take(0, frames)
    assert not findings.failed("layout") and not findings.failed("stats"), vars(findings)


def tensor(kind: str, shape: list[int], size: int, byte: int = 1) -> Tensor:
    count = 1
    for extent in shape:
        count *= extent
    return Tensor(kind, shape, (bytes([byte]) + bytes(size - 1)) * count)


@pytest.mark.parametrize(
    ("ids", "ranks", "fault"),
    [
        ([2, 3], tensor("<i8", [2], 8), ""),
        ([1, 3], tensor("<i8", [1], 8), "for 2 positions"),
        ([2, 3], tensor("<i8", [1], 8), "ranks of shape"),
        ([2, 3], tensor("int32", [2], 4, 0), "rank 0"),
        ([2, 3], tensor("<f4", [2], 4), "ranks are <f4"),
    ],
)
def test_logprobs(ids: list[int], ranks: Tensor, fault: str) -> None:
    found = logprobs_fault(Logprobs(tensor("<i4", ids, 4), tensor("<f4", ids, 4), ranks), 2)
    assert fault in found and bool(found) is bool(fault)


def test_a_ready_response_of_an_old_release_suits_that_release() -> None:
    (ready,) = [
        msgspec.msgpack.decode(vector.bytes[-1])
        for vector in vectors()
        if (vector.file, vector.name) == ("handshake-0.25.1", "ready_response__no_kv")
    ]
    assert ready_faults(ready, LAYOUTS["0.25"]) == []
    assert "no max_num_seqs" in ready_faults(ready, LAYOUTS["0.33"])


def test_a_death_notice_is_heard_and_its_form_judged() -> None:
    findings = Findings()
    watch = Watch(findings, LAYOUTS["0.33"], 0)
    watch.take(0, [b"ENGINE_CORE_DEAD"])
    assert watch.dead == {0} and not findings.failed("death_notice")
    watch.take(1, [b"ENGINE_CORE_DEAD", b"more"])
    assert watch.dead == {0, 1} and findings.failed("death_notice")
    assert all(row.outcome is not Outcome.HOLDS for row in findings.rows([], ""))
