"""Whatever bytes a peer sends, a decoder gives a message or a RemoteProtocolError, and goes on working.

Whatever values a caller gives, an encoder gives frames that every rule of the protocol allows, or a
LocalProtocolError.
"""

import contextlib
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire import coordination
from muro.wire.arrays import Tensor
from muro.wire.codec import DEAD, OutputDecoder, OutputEncoder, RequestDecoder, RequestEncoder
from muro.wire.failure import FailureRecord
from muro.wire.handshake import decode_init, decode_ready_response
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
from muro.wire.progress import PAGE_SIZE, unpack
from muro.wire.releases import LAYOUTS, NEWEST, SAFE, layout_for_add_length
from muro.wire.request import EngineCoreRequest, SamplingParams
from muro.wire.stats import PrefillStats, SchedulerStats
from tests.support.vectors import vectors

ROUNDS = 20_000 if os.environ.get("MURO_FULL_COUNTS") else 600
many = settings(max_examples=ROUNDS, deadline=None, suppress_health_check=list(HealthCheck))

VECTORS = vectors()
REQUESTS = [v.bytes for v in VECTORS if v.message in ("ADD", "ABORT", "UTILITY", "START_DP_WAVE")]
OUTPUTS = [v.bytes for v in VECTORS if v.message == "EngineCoreOutputs"]
SINGLE: dict[str, Callable[[bytes], object]] = {
    "INIT": decode_init,
    "READY_RESPONSE": decode_ready_response,
    "PUBLISH": coordination.decode_publication,
    "FIRST_REQUEST": coordination.decode_notice,
}

HEADERS = [
    b"\xdd\x7f\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc9\x7f\xff\xff\xff\x03",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
]
PIECES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [
            *HEADERS,
            b"\x91" * 2000,
            b"\x81\xa1a" * 700,
            b"\xcf" + b"\xff" * 8,
            b"\xd3\x80" + b"\x00" * 7,
            b"\xc1",
            b"\xc0",
        ]
    ),
    st.builds(
        lambda code, data: b"\xc7" + bytes([len(data), code]) + data, st.integers(0, 255), st.binary(max_size=16)
    ),
)


@st.composite
def damaged(draw: st.DrawFn, messages: list[list[bytes]]) -> list[bytes]:
    """A recorded message with some bytes replaced, removed or inserted, and perhaps other frames."""
    frames = list(draw(st.sampled_from(messages)))
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, len(frames) - 1))
        data = frames[number]
        start = draw(st.integers(0, len(data)))
        frames[number] = data[:start] + draw(PIECES) + data[start + draw(st.integers(0, 4)) :]
    if draw(st.integers(0, 9)) == 0:
        frames.insert(draw(st.integers(0, len(frames))), draw(st.binary(max_size=300)))
    if draw(st.integers(0, 9)) == 0:
        del frames[draw(st.integers(0, len(frames) - 1))]
    return frames


REQUEST_DECODER = RequestDecoder()
OUTPUT_DECODER = OutputDecoder()


@many
@given(st.one_of(damaged(REQUESTS), st.lists(st.binary(max_size=64), max_size=4)))
def test_requests_of_any_bytes(frames: list[bytes]) -> None:
    with contextlib.suppress(RemoteProtocolError):
        REQUEST_DECODER.decode(frames)
    known = REQUEST_DECODER.salvage(frames)
    assert known is None or (isinstance(known[0], str) and isinstance(known[1], int))
    call = REQUEST_DECODER.salvage_call(frames)
    assert call is None or isinstance(call[2], str)
    assert REQUEST_DECODER.add_length(frames) >= 0
    heading = REQUEST_DECODER.heading(frames)
    assert heading is None or (isinstance(heading[0], str) and heading[1] >= 0)
    assert REQUEST_DECODER.decode(REQUESTS[0]), "the decoder is as good as new"


@many
@given(st.one_of(damaged(OUTPUTS), st.lists(st.binary(max_size=64), max_size=3)))
def test_outputs_of_any_bytes(frames: list[bytes]) -> None:
    with contextlib.suppress(RemoteProtocolError):
        OUTPUT_DECODER.decode(frames)
    assert OUTPUT_DECODER.decode(OUTPUTS[0]), "the decoder is as good as new"


@many
@given(
    st.sampled_from([v for v in VECTORS if v.message in SINGLE]).flatmap(
        lambda v: st.tuples(st.just(v.message), damaged([[v.bytes[-1]]]))
    )
)
def test_other_messages_of_any_bytes(case: tuple[str, list[bytes]]) -> None:
    name, frames = case
    for frame in frames:
        with contextlib.suppress(RemoteProtocolError):
            SINGLE[name](frame)


@many
@given(st.binary(max_size=200))
def test_failure_records_and_progress_pages_of_any_bytes(data: bytes) -> None:
    for read in (FailureRecord.decode, lambda data: unpack((data * PAGE_SIZE)[:PAGE_SIZE])):
        with contextlib.suppress(RemoteProtocolError):
            read(data)


def test_absurd_lengths_cost_no_memory() -> None:
    tracemalloc.start()
    try:
        for header in HEADERS:
            for prefix in (b"", b"\x94\x00", b"\x94\xa1a", b"\x94\x00\x01\xa1m"):
                for kind in (b"\x00", b"\x01", b"\x02", b"\x03"):
                    try:
                        RequestDecoder().decode([kind, prefix + header + b"\xc0" * 8])
                    except RemoteProtocolError:
                        continue
                    raise AssertionError((kind, prefix, header))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# -- encoders --

WEIRD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=4), st.binary(max_size=4),
    st.just(object()), st.just(len), st.lists(st.integers(), max_size=2), st.sets(st.integers(0, 3)), st.just(1j),
    st.just("\ud800"),
    st.builds(
        Tensor,
        st.sampled_from(["uint8", "float32", "object"]),
        st.lists(st.integers(-1, 3), max_size=2),
        st.binary(max_size=12),
    ),
)  # fmt: skip


@many
@given(
    st.dictionaries(st.sampled_from(EngineCoreRequest.__struct_fields__), WEIRD, max_size=3),
    st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), WEIRD, max_size=3),
)
def test_requests_of_any_values_are_read_as_they_were_or_never_sent(
    fields: dict[str, Any], params: dict[str, Any]
) -> None:
    given_fields = {"request_id": "a", "prompt_token_ids": [1], "sampling_params": SamplingParams(**params), **fields}
    request = EngineCoreRequest(**given_fields)
    try:
        frames = RequestEncoder().add(request)
    except LocalProtocolError:
        return
    read = RequestDecoder().decode(frames)
    assert isinstance(read, EngineCoreRequest)
    again = RequestEncoder().add(read)
    assert RequestEncoder().add(RequestDecoder().decode(again)) == again  # type: ignore[arg-type]


def ranks(low: int) -> st.SearchStrategy[Logprobs]:
    def build(values: list[int]) -> Logprobs:
        count = len(values)
        data = b"".join(value.to_bytes(8, "little", signed=True) for value in values)
        flat = bytes(4 * count)
        return Logprobs(Tensor("<i4", [count, 1], flat), Tensor("<f4", [count, 1], flat), Tensor("<i8", [count], data))

    return st.builds(build, st.lists(st.integers(low, 2**31), max_size=40))


ANY_OUTPUT = st.builds(
    EngineCoreOutput, st.text(max_size=4), st.lists(st.integers(0, 2**31), max_size=3),
    st.none() | ranks(1) | ranks(-1), st.none() | ranks(1), st.none(), st.none() | st.sampled_from(FinishReason),
    st.none() | st.integers(0, 9) | st.text(max_size=3),
    st.none() | st.lists(st.builds(EngineCoreEvent, st.sampled_from(EventType), st.floats(0, 9)), max_size=2),
    st.none() | st.dictionaries(st.text(max_size=2), st.integers(-9, 9), max_size=2), st.none() | st.just({}),
    st.none() | st.just({"a": "b"}), st.none() | st.just(PrefillStats(3)),
    st.none() | st.just(Tensor("|u1", [300], bytes(300))), st.integers(0, 2),
    st.none() | st.just(["h"]), st.none(), st.none() | st.just({}), st.none(),
    st.none() | st.just(OutputError("c", "m")),
)  # fmt: skip
ANY_ANSWER = st.builds(
    UtilityOutput,
    st.integers(-2, 2**64 - 1),
    st.none() | st.text(max_size=3),
    st.sampled_from([None, 5, [None, None], [None, 5], ["t", 5]]),
)
ANY_BATCH = st.builds(
    EngineCoreOutputs, st.integers(0, 9), st.lists(ANY_OUTPUT, max_size=3), st.none() | st.just(SchedulerStats()),
    st.floats(0, 1e9), st.none(), st.none() | st.lists(st.text(max_size=2), max_size=2), st.none(), st.none(),
    st.none() | st.just("v"),
)  # fmt: skip
ANY_MESSAGE = st.one_of(
    ANY_BATCH,
    st.builds(EngineCoreOutputs, utility_output=ANY_ANSWER),
    st.builds(EngineCoreOutputs, wave_complete=st.integers(0, 9)),
    st.builds(
        EngineCoreOutputs,
        outputs=st.lists(ANY_OUTPUT, max_size=1),
        utility_output=st.none() | ANY_ANSWER,
        wave_complete=st.none() | st.integers(0, 9),
        start_wave=st.none() | st.integers(0, 9),
    ),
)
READERS = {row.name: row for row in (SAFE, layout_for_add_length(22), *LAYOUTS.values()) if row is not None}


@many
@given(ANY_MESSAGE, st.sampled_from(sorted(READERS)))
def test_what_the_protocol_forbids_is_never_sent(message: EngineCoreOutputs, name: str) -> None:
    layout = READERS[name]
    try:
        frames = [bytes(frame) for frame in OutputEncoder(layout).encode(message, bytearray())]
    except LocalProtocolError:
        return
    tree = msgspec.msgpack.decode(frames[0])
    assert len(tree) == layout.envelope_fields
    kinds = [
        bool(tree[1] or tree[2] is not None or tree[5]),
        tree[4] is not None,
        tree[6] is not None,
        tree[7] is not None,
    ]
    assert sum(kinds) == 1, "neither empty nor mixed"
    if tree[4] is not None:
        _, failure, result = tree[4]
        assert result is None if failure is not None else (len(result) == 2 and result[0] is None)
    for row in tree[1]:
        assert len(row) <= len(layout.output_fields)
        assert len(row) <= 9 or len(row) >= layout.output_floor
        for logprobs in row[2:4] if len(row) > 2 else []:
            assert logprobs is None or len(logprobs) == 4
    back = OutputDecoder(layout).decode(frames)
    assert back is not DEAD
    for output in back.outputs:
        for kept in (output.new_logprobs, output.new_prompt_logprobs_tensors):
            assert kept is None or all(rank >= 1 for rank in kept.ranks.numpy().tolist())
    if layout is NEWEST:
        assert back == message
