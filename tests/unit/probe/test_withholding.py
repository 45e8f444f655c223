"""Without prompts: no token id, text, tensor or hash source of a request is in what is kept, and it reads as before."""

from typing import Any

import msgspec
import numpy as np
import pytest

from muro.probe.reading import Kind, Reader
from muro.probe.recording import Direction, Kept, KeptFrame, Record, Role
from muro.probe.withholding import Withholder, whole
from muro.wire.arrays import Tensor, tensor_from_numpy
from muro.wire.codec import OutputEncoder, RequestEncoder
from muro.wire.control import UtilityRequest
from muro.wire.frames import ENGINE_CORE_DEAD, SUBSCRIBE, UNSUBSCRIBE, Frame
from muro.wire.output import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    Logprobs,
    OutputError,
    UtilityOutput,
)
from muro.wire.releases import LAYOUTS
from muro.wire.request import (
    EngineCoreRequest,
    MultiModalFeature,
    MultiModalItem,
    PlaceholderRange,
    PoolingParams,
    SamplingParams,
    StructuredOutputsParams,
)
from muro.wire.stats import PrefillStats, SchedulerStats
from tests.support.vectors import Vector, vectors
from tests.support.wires import TO_ENGINE, TO_FRONTEND

MARK = 1_234_567_891
"""A token id that occurs nowhere by chance."""
MARK_BYTES = [MARK.to_bytes(4, "big"), MARK.to_bytes(4, "little")]
WORDS = "xylophone"
PEER = b"\0\0"


def kept(
    role: Role, direction: Direction, frames: list[Frame], withholder: Withholder | None = None
) -> tuple[Record, bytes]:
    """The record of a message, and all bytes of it that would be in a file."""
    chosen = withholder or Withholder(1 << 20)
    copies, withheld = chosen.keep(role, direction, PEER, frames)
    record = Record(0.0, direction, role, PEER, 0, 0, copies, withheld)
    return record, msgspec.msgpack.encode(record)


def says_nothing(data: bytes) -> bool:
    return WORDS.encode() not in data and not any(mark in data for mark in MARK_BYTES)


def embeds() -> Tensor:
    return tensor_from_numpy(np.full(128, MARK, "<i4"))


REQUESTS = {
    "tokens": EngineCoreRequest("r-1", [MARK] * 5, sampling_params=SamplingParams(max_tokens=7, seed=3)),
    "texts": EngineCoreRequest(
        "r-1",
        [MARK],
        sampling_params=SamplingParams(
            stop=[WORDS],
            stop_token_ids=[MARK],
            bad_words=[WORDS],
            bad_words_token_ids=[[MARK]],
            all_stop_token_ids=[MARK],
            eos_token_id=MARK,
            allowed_token_ids=[MARK],
            logit_bias={MARK: 1.0},
            extra_args={WORDS: WORDS},
            structured_outputs=StructuredOutputsParams(regex=WORDS, backend="guidance"),
        ),
        cache_salt=WORDS,
        trace_headers={"traceparent": WORDS},
        reasoning_parser_kwargs={"chat_template_kwargs": {WORDS: WORDS}},
        kv_hints={"protocol_version": WORDS},
    ),
    "embeddings": EngineCoreRequest("r-1", None, sampling_params=SamplingParams(), prompt_embeds=embeds()),
    "pooling": EngineCoreRequest(
        "r-1",
        [MARK],
        pooling_params=PoolingParams(task="embed", returned_token_ids=[MARK], extra_kwargs={WORDS: MARK}),
    ),
    "images": EngineCoreRequest(
        "r-1",
        [MARK],
        [
            MultiModalFeature(
                {"pixels": MultiModalItem(embeds(), ["batched", {"keep_on_cpu": False}])},
                "image",
                WORDS,
                PlaceholderRange(2, 5),
                WORDS,
            )
        ],
        SamplingParams(),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_keeps_its_shape_alone(name: str) -> None:
    request = REQUESTS[name]
    record, data = kept(Role.INPUT, TO_ENGINE, RequestEncoder().add(request))
    assert says_nothing(data)
    assert record.withheld, "what is missing is named"
    message = Reader().read(record)
    assert message.kind is Kind.ADD and not message.fault, message.fault
    copy = message.value
    assert isinstance(copy, EngineCoreRequest)
    assert copy.request_id == "r-1"
    assert copy.prompt_token_ids == (None if request.prompt_token_ids is None else [0] * len(request.prompt_token_ids))
    if request.mm_features:
        assert copy.mm_features is not None
        assert [(f.modality, f.mm_position.length) for f in copy.mm_features] == [("image", 5)]


def test_settings_that_are_numbers_stay() -> None:
    message = Reader().read(kept(Role.INPUT, TO_ENGINE, RequestEncoder().add(REQUESTS["tokens"]))[0])
    assert isinstance(message.value, EngineCoreRequest)
    assert message.value.sampling_params == SamplingParams(max_tokens=7, seed=3)


@pytest.mark.parametrize("release", ["0.25", "0.26", "0.33"])
def test_outputs_keep_counts_and_ends(release: str) -> None:
    tensor = tensor_from_numpy(np.full((2, 100), MARK, "<i4"))
    ones = tensor_from_numpy(np.ones(2, "<i4"))
    output = EngineCoreOutput(
        "r-1",
        [MARK, MARK],
        new_logprobs=Logprobs(tensor, tensor, ones),
        pooling_output=tensor,
        finish_reason=FinishReason.STOP,
        stop_reason=MARK,
        trace_headers={"a": WORDS},
        prefill_stats=PrefillStats(num_prompt_tokens=4),
        error=OutputError("validation_error", WORDS, True),
    )
    stats = SchedulerStats(num_running_reqs=3)
    message = EngineCoreOutputs(outputs=[output], scheduler_stats=stats, finished_requests=["r-1"])
    frames = OutputEncoder(LAYOUTS[release]).encode(message, bytearray())
    record, data = kept(Role.OUTPUT, TO_FRONTEND, list(frames))
    assert says_nothing(data)
    value = Reader(LAYOUTS[release]).read(record).value
    assert isinstance(value, EngineCoreOutputs)
    (copy,) = value.outputs
    assert (copy.request_id, copy.new_token_ids, copy.finish_reason) == ("r-1", [0, 0], FinishReason.STOP)
    assert copy.prefill_stats is not None and copy.prefill_stats.num_prompt_tokens == 4
    assert value.scheduler_stats is not None and value.scheduler_stats.num_running_reqs == 3
    if release == "0.33":
        assert copy.error == OutputError("validation_error", "", True)


def test_a_text_that_stopped_a_request_is_not_kept() -> None:
    output = EngineCoreOutput("r-1", [], finish_reason=FinishReason.STOP, stop_reason=WORDS)
    frames = OutputEncoder().encode(EngineCoreOutputs(outputs=[output]), bytearray())
    assert says_nothing(kept(Role.OUTPUT, TO_FRONTEND, list(frames))[1])


def call(method: str, *args: Any) -> list[Frame]:
    return RequestEncoder().call(UtilityRequest(0, 5, method, list(args)))


def answer(value: Any = None, failure: str | None = None) -> list[Frame]:
    reply = UtilityOutput(5, failure, None if failure is not None else [None, value])
    return list(OutputEncoder().encode(EngineCoreOutputs(utility_output=reply), bytearray()))


def test_known_calls_and_their_answers_stay() -> None:
    withholder = Withholder(1 << 20)
    record, _ = kept(Role.INPUT, TO_ENGINE, call("get_supported_tasks"), withholder)
    assert not record.withheld and record.frames[1].kept is Kept.WHOLE
    record, _ = kept(Role.OUTPUT, TO_FRONTEND, answer(["generate"]), withholder)
    assert not record.withheld
    value = Reader().read(record).value
    assert isinstance(value, EngineCoreOutputs) and value.utility_output is not None
    assert value.utility_output.result == [None, ["generate"]]


@pytest.mark.parametrize("method", ["collective_rpc", "something_of_their_own"])
def test_of_other_calls_only_numbers_stay(method: str) -> None:
    withholder = Withholder(1 << 20)
    record, data = kept(Role.INPUT, TO_ENGINE, call(method, WORDS, MARK, [WORDS]), withholder)
    assert says_nothing(data) and record.withheld == ["args"]
    _, data = kept(Role.OUTPUT, TO_FRONTEND, answer({"a": WORDS, "n": 3}), withholder)
    assert says_nothing(data)
    _, data = kept(Role.OUTPUT, TO_FRONTEND, answer(failure=f"Call to {method} method failed: {WORDS}"), withholder)
    assert says_nothing(data) and f"Call to {method} method failed: (withheld)".encode() in data


WRONG = ["r", *[None if place in (16, 20) else WORDS for place in range(1, 30)]]
"""Text in every place but those of ids."""

JUNK: dict[str, tuple[Role, Direction, list[bytes]]] = {
    "no msgpack": (Role.INPUT, TO_ENGINE, [b"\0", b"\xc1" + WORDS.encode()]),
    "no request": (Role.INPUT, TO_ENGINE, [b"\0", msgspec.msgpack.encode(WORDS)]),
    "a map for a request": (Role.INPUT, TO_ENGINE, [b"\0", msgspec.msgpack.encode({WORDS: MARK})]),
    "an unknown type": (Role.INPUT, TO_ENGINE, [b"\x09", msgspec.msgpack.encode([WORDS, MARK])]),
    "a long type": (Role.INPUT, TO_ENGINE, [WORDS.encode(), WORDS.encode()]),
    "fields in wrong places": (Role.INPUT, TO_ENGINE, [b"\0", msgspec.msgpack.encode(WRONG)]),
    "deep": (Role.INPUT, TO_ENGINE, [b"\0", b"\x91" * 100_000 + b"\xa9" + WORDS.encode()]),
    "no map at the handshake": (Role.HANDSHAKE, TO_FRONTEND, [msgspec.msgpack.encode([WORDS, MARK])]),
    "unknown keys at the handshake": (Role.HANDSHAKE, TO_FRONTEND, [msgspec.msgpack.encode({"x": WORDS})]),
    "no outputs": (Role.OUTPUT, TO_FRONTEND, [msgspec.msgpack.encode([0, WORDS])]),
    "outputs of texts": (Role.OUTPUT, TO_FRONTEND, [msgspec.msgpack.encode([0, [[WORDS, WORDS]]])]),
    "text after the envelope": (Role.OUTPUT, TO_FRONTEND, [msgspec.msgpack.encode([0, [], *[WORDS] * 12])]),
    "more frames": (Role.OUTPUT, TO_FRONTEND, [ENGINE_CORE_DEAD, WORDS.encode()]),
    "a wave of text": (Role.COORDINATOR_INPUT, TO_ENGINE, [b"\x02", msgspec.msgpack.encode([WORDS, WORDS])]),
    "aborts of numbers": (Role.INPUT, TO_ENGINE, [b"\1", msgspec.msgpack.encode([MARK])]),
    "long ids": (Role.INPUT, TO_ENGINE, [b"\1", msgspec.msgpack.encode([WORDS * 1000])]),
}


@pytest.mark.parametrize("name", JUNK)
def test_what_is_not_of_the_protocols_form_leaves_a_hash(name: str) -> None:
    role, direction, frames = JUNK[name]
    record, data = kept(role, direction, list(frames))
    assert says_nothing(data), record
    assert [frame.size for frame in record.frames] == [len(frame) for frame in frames]
    assert record.withheld
    Reader().read(record)


@pytest.mark.parametrize("mark", [SUBSCRIBE, UNSUBSCRIBE])
def test_what_sockets_say_of_subscriptions_stays(mark: bytes) -> None:
    frames, withheld = Withholder(1 << 20).keep(Role.COORDINATOR_INPUT, TO_FRONTEND, b"\0\0", [mark])
    assert (frames, withheld) == ([KeptFrame(mark, 1)], [])
    message = Reader().read(Record(0.0, TO_FRONTEND, Role.COORDINATOR_INPUT, b"\0\0", 0, None, frames))
    assert (message.kind, message.fault) == (Kind.SUBSCRIBE, "")


def test_marks_and_words_of_the_handshake_stay_as_they_are() -> None:
    record, _ = kept(Role.OUTPUT, TO_FRONTEND, [ENGINE_CORE_DEAD])
    assert record.frames == [KeptFrame(ENGINE_CORE_DEAD, 16)] and not record.withheld


@pytest.mark.parametrize(
    "vector",
    [v for v in vectors() if v.file.startswith(("add_requests", "control_requests", "outputs"))],
    ids=lambda v: f"{v.file}-{v.name}",
)
def test_every_recorded_message_of_vllm_can_still_be_read(vector: Vector) -> None:
    """Whatever a release sends: the copy is read as the same kind as the original, with the same ids."""
    direction = TO_FRONTEND if vector.file.startswith("outputs") else TO_ENGINE
    role = Role.OUTPUT if vector.file.startswith("outputs") else Role.INPUT
    reader = Reader(LAYOUTS.get(f"0.{vector.minor}"))
    everything = Record(0.0, direction, role, PEER, 0, 0, whole(vector.bytes, 1 << 20))
    copy, _ = kept(role, direction, list(vector.bytes))
    original, kept_message = reader.read(everything), reader.read(copy)
    assert kept_message.kind is original.kind
    if not original.fault:
        assert not kept_message.fault, kept_message.fault
        assert kept_message.ids == original.ids


def test_large_frames_are_cut() -> None:
    record, data = kept(Role.INPUT, TO_ENGINE, RequestEncoder().add(REQUESTS["tokens"]), Withholder(max_frame_bytes=16))
    assert record.frames[1].kept is Kept.CUT and len(record.frames[1].data) == 16 and says_nothing(data)
    assert [frame.data for frame in whole([bytes(100)], 10)] == [bytes(10)]
