from typing import Any

import msgspec
import numpy as np
import pytest

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire.arrays import Tensor, tensor_from_numpy
from muro.wire.codec import DEAD, OutputDecoder, OutputEncoder
from muro.wire.codec.headers import MAX_AUX_FRAMES
from muro.wire.output import (
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    EventType,
    FinishReason,
    Logprobs,
    OutputError,
    UtilityOutput,
)
from muro.wire.releases import LAYOUTS, NEWEST, SAFE, layout_for_add_length
from muro.wire.stats import PrefillStats, PrefixCacheStats, SchedulerStats

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode
Ext = msgspec.msgpack.Ext

PLAIN = EngineCoreOutput("a", [42])


def logprobs(rank: int = 1, positions: int = 1, **fields: Any) -> Logprobs:
    return Logprobs(
        tensor_from_numpy(np.arange(positions * 3, dtype="<i4").reshape(positions, 3)),
        tensor_from_numpy(np.zeros((positions, 3), dtype="<f4")),
        tensor_from_numpy(np.full(positions, rank, dtype="<i8")),
        **fields,
    )


FULL = EngineCoreOutput(
    "b", [1, 2], logprobs(), logprobs(positions=100), Tensor("float32", [100], bytes(400)), FinishReason.ERROR, "stop",
    [EngineCoreEvent(EventType.QUEUED, 1.0)], {"k": 1}, {"e": 2}, {"t": "h"}, PrefillStats(5, 4, 1, 1, 0, 2),
    Tensor("|u1", [2], b"ab"), 3, ["h"], None, {"s": 1}, Tensor("float32", [1], b"abcd"), OutputError("c", "m", True),
)  # fmt: skip


def encode(message: EngineCoreOutputs, layout: Any = NEWEST) -> list[bytes]:
    return [bytes(frame) for frame in OutputEncoder(layout).encode(message, bytearray())]


def rows(*outputs: EngineCoreOutput, layout: Any) -> list[list[Any]]:
    return unpack(encode(EngineCoreOutputs(outputs=list(outputs)), layout)[0])[1]


def decode(*frames: bytes, engine: Any = NEWEST) -> Any:
    return OutputDecoder(engine).decode(list(frames))


@pytest.mark.parametrize("minor", range(25, 34))
def test_every_release_reads_all_that_it_knows(minor: int) -> None:
    layout = LAYOUTS[f"0.{minor}"]
    stats = SchedulerStats(1, 2, prefix_cache_stats=PrefixCacheStats(requests=1))
    message = EngineCoreOutputs(3, [PLAIN, FULL], stats, 1.5, finished_requests=["b"])
    back = decode(*encode(message, layout), engine=layout)
    for name in EngineCoreOutput.__struct_fields__:
        known = name in layout.output_fields
        default = getattr(EngineCoreOutput("", []), name)
        wanted = getattr(FULL, name) if known else default
        if name == "prefill_stats" and minor < 26:
            wanted = msgspec.structs.replace(wanted, num_cache_creation_tokens=0)
        assert getattr(back.outputs[1], name) == wanted, name
    assert back.outputs[0] == PLAIN
    assert msgspec.structs.replace(back, outputs=message.outputs) == message


@pytest.mark.parametrize(("layout", "keys"), [(LAYOUTS["0.25"], 15), (LAYOUTS["0.26"], 16), (SAFE, 15), (NEWEST, 18)])
def test_statistics_have_the_keys_of_the_release(layout: Any, keys: int) -> None:
    message = EngineCoreOutputs(scheduler_stats=SchedulerStats(connector_prefix_cache_stats=PrefixCacheStats()))
    stats = unpack(encode(message, layout)[0])[2]
    assert len(stats) == keys
    for name in ("prefix_cache_stats", "connector_prefix_cache_stats"):
        assert ("hits_by_source" in stats[name]) == (layout is NEWEST)


LENGTHS = {
    SAFE.name: {"plain": 2, "finish": 6, "prefill": 2, "full": 9, "envelope": 8},
    "0.25": {"plain": 2, "finish": 6, "prefill": 13, "full": 13, "envelope": 8},
    "0.26": {"plain": 2, "finish": 6, "prefill": 14, "full": 14, "envelope": 8},
    "0.28": {"plain": 2, "finish": 6, "prefill": 14, "full": 15, "envelope": 8},
    "0.31+": {"plain": 2, "finish": 6, "prefill": 14, "full": 19, "envelope": 8},
    "0.32": {"plain": 2, "finish": 6, "prefill": 14, "full": 18, "envelope": 9},
    "0.33": {"plain": 19, "finish": 19, "prefill": 19, "full": 19, "envelope": 9},
}
OUTPUTS = {
    "plain": PLAIN,
    "finish": EngineCoreOutput("a", [42], finish_reason=FinishReason.STOP),
    "prefill": EngineCoreOutput("a", [42], prefill_stats=PrefillStats(1)),
    "full": FULL,
}


@pytest.mark.parametrize("name", LENGTHS)
def test_arrays_are_as_short_as_their_reader_allows_and_never_of_a_doubtful_length(name: str) -> None:
    layout = next(
        row for row in (SAFE, layout_for_add_length(22), *LAYOUTS.values()) if row is not None and row.name == name
    )
    found = {kind: len(rows(output, layout=layout)[0]) for kind, output in OUTPUTS.items()}
    found["envelope"] = len(unpack(encode(EngineCoreOutputs(outputs=[PLAIN]), layout)[0]))
    assert found == LENGTHS[name]


def test_zero_values_that_mean_something_are_not_cut() -> None:
    for output in (
        EngineCoreOutput("a", [], finish_reason=FinishReason.STOP),
        EngineCoreOutput("a", [], stop_reason=0),
        EngineCoreOutput("a", [], kv_transfer_params={}),
    ):
        for layout in (SAFE, *LAYOUTS.values()):
            assert decode(*encode(EngineCoreOutputs(outputs=[output]), layout), engine=layout).outputs == [output]


def test_an_engine_of_either_layout_is_understood_whatever_was_expected() -> None:
    message = EngineCoreOutputs(
        outputs=[PLAIN, EngineCoreOutput("a", [1], trace_headers={"a": "b"}, prefill_stats=PrefillStats(3))]
    )
    old, new = encode(message, LAYOUTS["0.25"]), encode(message, LAYOUTS["0.26"])
    for expected in ("0.25.1", "0.33.0", "garbage", "", "1.0", "0.99.dev1+g123"):
        decoder = OutputDecoder(expected)
        for frames in (old, old, new, new, old, new):
            assert decoder.decode(frames) == message


@pytest.mark.parametrize(
    "message",
    [
        EngineCoreOutputs(),
        EngineCoreOutputs(finished_requests=[]),
        EngineCoreOutputs(weight_version="v"),
        EngineCoreOutputs(outputs=[PLAIN], wave_complete=1),
        EngineCoreOutputs(outputs=[PLAIN], utility_output=UtilityOutput(1, None, [None, 1])),
        EngineCoreOutputs(scheduler_stats=SchedulerStats(), start_wave=1),
        EngineCoreOutputs(wave_complete=1, start_wave=2),
        EngineCoreOutputs(finished_requests=["a"], utility_output=UtilityOutput(1, "no", None)),
    ],
)
def test_empty_and_mixed_messages_are_never_sent(message: EngineCoreOutputs) -> None:
    for layout in (SAFE, NEWEST):
        with pytest.raises(LocalProtocolError, match="must hold one of"):
            encode(message, layout)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (UtilityOutput(1, None, None), "successful call must be the pair"),
        (UtilityOutput(1, None, 5), "successful call must be the pair"),
        (UtilityOutput(1, None, ["a", 5]), "successful call must be the pair"),
        (UtilityOutput(1, "no", [None, 5]), "failed call must have no result"),
    ],
)
def test_answers_in_another_form_are_never_sent(answer: UtilityOutput, match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        encode(EngineCoreOutputs(utility_output=answer))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (logprobs(rank=0), "ranks count from 1"),
        (logprobs(rank=-1), "ranks count from 1"),
        (logprobs(cu=[0]), "no cumulative counts"),
        (Logprobs(*[tensor_from_numpy(np.ones(1, dtype="<f4"))] * 3), "must be int32 or int64"),
    ],
)
def test_logprobs_that_front_ends_refuse_are_never_sent(wrong: Logprobs, match: str) -> None:
    for field in ("new_logprobs", "new_prompt_logprobs_tensors"):
        for layout in (SAFE, NEWEST):
            output = EngineCoreOutput("a", [1], **{field: wrong})
            with pytest.raises(LocalProtocolError, match=rf"outputs\[1\]: .*{match}"):
                encode(EngineCoreOutputs(outputs=[PLAIN, output]), layout)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({1, 2}, None),
        (float("nan"), None),
        (object(), "object cannot travel"),
        (2**70, "can't serialize"),
        (int, "type cannot travel"),
    ],
)
def test_answers_that_cannot_be_carried_are_named_and_leave_no_trace(value: object, match: str | None) -> None:
    encoder, buffer = OutputEncoder(), bytearray()
    message = EngineCoreOutputs(utility_output=UtilityOutput(1, None, [None, {"k": value}]))
    if match is None:
        encoder.encode(message, buffer)
    else:
        with pytest.raises(LocalProtocolError, match=rf"utility_output.result\[1\]\['k'\]: .*{match}"):
            encoder.encode(message, buffer)
    good = EngineCoreOutputs(outputs=[PLAIN])
    assert decode(*map(bytes, encoder.encode(good, buffer))) == good


def test_an_output_that_cannot_be_carried_is_named() -> None:
    bad = EngineCoreOutput("a", [1], kv_transfer_params={"x": object()})
    for layout in (SAFE, NEWEST):
        with pytest.raises(LocalProtocolError, match=r"outputs\[1\].kv_transfer_params\['x'\]"):
            encode(EngineCoreOutputs(outputs=[PLAIN, bad]), layout)


def test_a_buffer_is_used_again_and_large_arrays_are_views() -> None:
    encoder, buffer = OutputEncoder(), bytearray()
    big = np.arange(1000, dtype="<f4")
    frames = encoder.encode(
        EngineCoreOutputs(outputs=[EngineCoreOutput("a", [], pooling_output=tensor_from_numpy(big))]), buffer
    )
    assert frames[0] is buffer
    assert np.shares_memory(np.frombuffer(frames[1], dtype="<f4"), big)
    assert decode(*frames).outputs[0].pooling_output.numpy().tolist() == big.tolist()
    [again] = encoder.encode(EngineCoreOutputs(outputs=[PLAIN]), buffer)
    assert again is buffer
    assert decode(again).outputs == [PLAIN]


def test_numpy_numbers_in_outputs_are_written_as_numbers() -> None:
    message = EngineCoreOutputs(outputs=[EngineCoreOutput("a", [np.int64(7)])])  # type: ignore[list-item]
    assert decode(*encode(message)).outputs == [EngineCoreOutput("a", [7])]


def test_the_death_notice_is_one_frame_and_nothing_else() -> None:
    assert decode(b"ENGINE_CORE_DEAD") is DEAD
    assert OutputDecoder().decode([memoryview(b"ENGINE_CORE_DEAD")]) is DEAD
    for frames in ([b"ENGINE_CORE_DEAD", b""], [b"ENGINE_CORE_DEA"], [b"", b"ENGINE_CORE_DEAD"]):
        with pytest.raises(RemoteProtocolError):
            decode(*frames)


@pytest.mark.parametrize(
    ("result", "match"),
    [
        ([["m", "C"], {}], "type information"),
        ([[None, ["m", "C"]], [1, 2]], "type information"),
        (None, "without the pair"),
        (5, "without the pair"),
        ([None], "without the pair"),
    ],
)
def test_answers_with_types_or_in_another_form_end_their_call_with_a_clear_error(result: object, match: str) -> None:
    answer = decode(pack([0, [], None, 1.5, [7, None, result]])).utility_output
    assert (answer.call_id, answer.result) == (7, None)
    assert match in answer.failure_message


def test_answers_carry_tensors() -> None:
    value = {"w": Tensor("float32", [100], bytes(400)), "plain": ["text", [1], 1]}
    message = EngineCoreOutputs(utility_output=UtilityOutput(2**64 - 1, None, [None, value]))
    frames = encode(message)
    assert len(frames) == 2
    assert decode(*frames).utility_output.result == [None, value]


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (b"\x80", "Expected `array`"),
        (b"\xdd\x7f\xff\xff\xff", "truncated"),
        (b"\x92\x00\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x91" * 100_000, "output message"),
        (pack([0, [["a"]]]), "outputs"),
        (pack([0, [["a", [1], None, None, None, 9]]]), r"outputs\[0\].finish_reason"),
        (pack([0, [["a", [2**63]], []]]), "outputs"),
        (pack([0, [["a", [1], None, None, ["float32", [4], 1]]]]), r"auxiliary frame 1 .*pooling_output"),
        (pack([0, [["a", ["x"]]]]), r"outputs\[0\].new_token_ids"),
        (pack([0, [["a", [1], *[None] * 10, "x"]]]), "num_nans_in_logits|outputs"),
        (pack([0, [], {"num_running_reqs": "x"}]), "scheduler_stats"),
        (pack([0, [], None, 1.5, [1, None, Ext(1, b"\x80\x04N.")]]), "pickled object"),
    ],
)
def test_junk_is_a_protocol_error_that_names_the_place(payload: bytes, match: str) -> None:
    decoder = OutputDecoder()
    with pytest.raises(RemoteProtocolError, match=match):
        decoder.decode([payload])
    good = EngineCoreOutputs(outputs=[PLAIN])
    assert decoder.decode(encode(good)) == good


@pytest.mark.parametrize("frames", [[], [b"\x90"] * (MAX_AUX_FRAMES + 2)])
def test_wrong_frame_counts_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(*frames)


def test_short_and_long_arrays_of_logprobs_are_read() -> None:
    triple = ["<i4", [1], Ext(3, b"\x01\x00\x00\x00")]
    for parts in ([triple] * 3, [*[triple] * 3, None], [*[triple] * 3, None, None]):
        read = decode(pack([0, [["a", [1], parts, parts]]])).outputs[0]
        assert (
            read.new_logprobs
            == read.new_prompt_logprobs_tensors
            == Logprobs(*[Tensor("<i4", [1], b"\x01\x00\x00\x00")] * 3)
        )


def test_an_empty_envelope_is_read() -> None:
    assert decode(pack([0, []])) == EngineCoreOutputs()
    assert decode(pack([0, [], None, 0.0, None, None, None, None, None, {"later": 1}])) == EngineCoreOutputs()


def test_of_a_message_that_cannot_be_read_the_requests_end() -> None:
    decoder = OutputDecoder(NEWEST)
    rows = [["a", ["x"]], ["b", [1], None, None, None, 77], [5, []], [], ["a", [1]]]
    frames = [msgspec.msgpack.encode([0, rows])]
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.decode(frames)
    message = decoder.salvage(frames, caught.value)
    assert message is not None
    assert [output.request_id for output in message.outputs] == ["a", "b"]
    for output in message.outputs:
        assert output.finish_reason is FinishReason.ERROR
        assert output.error is not None
        assert "cannot be read" in output.error.message


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x90", b"\x91\x00", b"\x92\x00\xa1a", b"\x92\x00\xdd\xff\xff\xff\xff"]
)
def test_of_a_message_without_a_known_request_nothing_is_left(payload: bytes) -> None:
    assert OutputDecoder(NEWEST).salvage([payload], RemoteProtocolError("junk")) is None
    assert OutputDecoder(NEWEST).salvage([], RemoteProtocolError("junk")) is None
