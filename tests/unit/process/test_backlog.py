"""What is held for a client that does not read: merged without losing a token, or given up without losing an end."""

import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from muro.engine.events import Routed
from muro.ids import ClientIndex
from muro.process.backlog import LOST_ANSWER, OUTPUT_BYTES, TOKEN_BYTES, Backlog
from muro.wire.arrays import Tensor
from muro.wire.output import (
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    EventType,
    FinishReason,
    Logprobs,
    OutputError,
    SamplingMask,
    UtilityOutput,
)
from muro.wire.stats import PrefillStats, SchedulerStats

C1 = ClientIndex(1)


def message(*outputs: EngineCoreOutput, timestamp: float = 0.0, stats: SchedulerStats | None = None) -> Routed:
    parts = EngineCoreOutputs(engine_index=3, outputs=list(outputs), timestamp=timestamp, scheduler_stats=stats)
    return Routed(C1, parts)


def answer(call_id: int) -> Routed:
    return Routed(C1, EngineCoreOutputs(utility_output=UtilityOutput(call_id, None, [None, 1])), method="m")


def logprobs(*tokens: int) -> Logprobs:
    """Two columns per position; the values tell tokens apart."""
    n = len(tokens)
    return Logprobs(
        Tensor("<i8", [n, 2], b"".join(struct.pack("<2q", t, t + 1) for t in tokens)),
        Tensor("<f4", [n, 2], b"".join(struct.pack("<2f", -t, -t - 1) for t in tokens)),
        Tensor("<i4", [n], b"".join(struct.pack("<i", 1) for _ in tokens)),
    )


def merged(*routed: Routed) -> list[EngineCoreOutput]:
    backlog = Backlog()
    for one in routed:
        backlog.add(one)
    (only,) = backlog.take()
    return only.message.outputs


def test_it_is_empty_until_something_is_held() -> None:
    backlog = Backlog()
    assert not backlog and backlog.size == 0 and backlog.take() == []


def test_deltas_of_many_steps_become_one() -> None:
    backlog = Backlog()
    for step in range(100):
        backlog.add(message(EngineCoreOutput("a", [step]), EngineCoreOutput("b", [-step]), timestamp=float(step)))
    assert backlog
    (routed,) = backlog.take()
    assert (routed.client, routed.message.engine_index, routed.message.timestamp) == (C1, 3, 99.0)
    assert {o.request_id: o.new_token_ids for o in routed.message.outputs} == {
        "a": list(range(100)),
        "b": [-step for step in range(100)],
    }
    assert not backlog and backlog.size == 0 and backlog.take() == []


def test_statistics_are_dropped() -> None:
    backlog = Backlog()
    backlog.add(message(EngineCoreOutput("a", [1]), stats=SchedulerStats()))
    backlog.add(message(stats=SchedulerStats()))
    assert [routed.message.scheduler_stats for routed in backlog.take()] == [None]


def test_answers_are_kept_apart_and_in_order() -> None:
    backlog = Backlog()
    held = [answer(1), answer(2)]
    backlog.add(held[0])
    backlog.add(message(EngineCoreOutput("a", [1])))
    backlog.add(held[1])
    taken = backlog.take()
    assert taken[1:] == held and [o.request_id for o in taken[0].message.outputs] == ["a"]


def test_finished_requests_are_all_named() -> None:
    one, two = message(EngineCoreOutput("a", [])), message(EngineCoreOutput("b", []))
    one.message.finished_requests, two.message.finished_requests = ["a"], ["b"]
    backlog = Backlog()
    backlog.add(one)
    backlog.add(two)
    assert [routed.message.finished_requests for routed in backlog.take()] == [["a", "b"]]


def test_the_end_and_its_reason_are_the_last_words() -> None:
    (output,) = merged(
        message(EngineCoreOutput("a", [1])),
        message(EngineCoreOutput("a", [2], finish_reason=FinishReason.STOP, stop_reason="END")),
    )
    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([1, 2], FinishReason.STOP, "END")
    (output,) = merged(
        message(EngineCoreOutput("a", [1])),
        message(EngineCoreOutput("a", [], finish_reason=FinishReason.ERROR, error=OutputError("c", "m"))),
    )
    assert (output.new_token_ids, output.error) == ([1], OutputError("c", "m"))


def test_logprobs_are_joined_by_position() -> None:
    (output,) = merged(
        message(EngineCoreOutput("a", [5, 6], new_logprobs=logprobs(5, 6))),
        message(EngineCoreOutput("a", [7], new_logprobs=logprobs(7))),
        message(EngineCoreOutput("a", [], finish_reason=FinishReason.ABORT)),
    )
    assert output.new_logprobs == logprobs(5, 6, 7) and output.new_token_ids == [5, 6, 7]


def test_everything_that_is_said_once_survives() -> None:
    first = EngineCoreOutput(
        "a",
        [1],
        new_prompt_logprobs_tensors=logprobs(9),
        events=[EngineCoreEvent(EventType.SCHEDULED, 1.0)],
        prefill_stats=PrefillStats(num_prompt_tokens=4),
        trace_headers={"traceparent": "x"},
        num_nans_in_logits=1,
    )
    last = EngineCoreOutput(
        "a",
        [2],
        finish_reason=FinishReason.LENGTH,
        events=[EngineCoreEvent(EventType.PREEMPTED, 2.0)],
        kv_transfer_params={"remote": "k"},
        ec_transfer_params={"remote": "e"},
        spec_decode_metrics={"accepted": 3},
        num_nans_in_logits=2,
    )
    (output,) = merged(message(first), message(EngineCoreOutput("a", [])), message(last))
    assert output.new_prompt_logprobs_tensors == first.new_prompt_logprobs_tensors
    assert output.prefill_stats == first.prefill_stats and output.trace_headers == first.trace_headers
    assert (first.events, last.events) != (None, None) and output.events == first.events + last.events  # type: ignore[operator]
    assert output.kv_transfer_params == last.kv_transfer_params
    assert output.ec_transfer_params == last.ec_transfer_params
    assert output.spec_decode_metrics == last.spec_decode_metrics
    assert output.num_nans_in_logits == 3


def test_what_lies_per_position_and_cannot_be_joined_is_left_out() -> None:
    mask = SamplingMask(Tensor("<i4", [1], bytes(4)))
    experts = Tensor("<i4", [1, 1], bytes(4))
    first = EngineCoreOutput("a", [1], new_sampling_mask=mask, routed_experts=experts)
    (alone,) = merged(message(first))
    assert alone.new_sampling_mask is mask
    (both,) = merged(message(first), message(EngineCoreOutput("a", [2], new_sampling_mask=mask)))
    assert both.new_sampling_mask is None and both.routed_experts is None


def test_merging_does_not_change_what_came_in() -> None:
    first, second = EngineCoreOutput("a", [1]), EngineCoreOutput("a", [2])
    merged(message(first), message(second))
    assert (first.new_token_ids, second.new_token_ids) == ([1], [2])


def test_the_size_follows_what_is_held() -> None:
    backlog = Backlog()
    backlog.add(message(EngineCoreOutput("a", [1, 2])))
    assert backlog.size == OUTPUT_BYTES + 2 * TOKEN_BYTES
    backlog.add(message(EngineCoreOutput("a", [3])))
    assert backlog.size == OUTPUT_BYTES + 3 * TOKEN_BYTES
    backlog.add(message(EngineCoreOutput("b", [1], new_logprobs=logprobs(1))))
    assert backlog.size == 2 * OUTPUT_BYTES + 4 * TOKEN_BYTES + (16 + 8 + 4)
    backlog.add(message(EngineCoreOutput("c", [], new_prompt_logprobs_tensors=logprobs(1, 2))))
    assert backlog.size == 3 * OUTPUT_BYTES + 4 * TOKEN_BYTES + 3 * (16 + 8 + 4)


def test_answers_weigh_what_they_hold_until_they_are_given_up() -> None:
    backlog = Backlog()
    value = {"text": ["x" * 1000, b"y" * 500, memoryview(bytes(300))], "number": (1, 2.5, None)}
    parts = EngineCoreOutputs(utility_output=UtilityOutput(4, None, [None, value]))
    backlog.add(Routed(C1, parts, method="m"))
    assert 1800 < backlog.size < 1800 + 3 * OUTPUT_BYTES
    assert backlog.give_up() == [] and backlog.size == OUTPUT_BYTES
    (routed,) = backlog.take()
    assert routed.message.utility_output == UtilityOutput(4, LOST_ANSWER, None)


def test_given_up_requests_end_with_abort_and_the_others_as_they_did() -> None:
    backlog = Backlog()
    backlog.add(message(*(EngineCoreOutput(i, list(range(100))) for i in "ab")))
    backlog.add(message(EngineCoreOutput("b", [], finish_reason=FinishReason.STOP)))
    backlog.add(answer(1))
    size = backlog.size
    assert backlog.give_up() == ["a"]
    assert backlog.size < size and backlog
    backlog.add(message(EngineCoreOutput("a", [1])))  # on its way when it was given up
    outputs, call = backlog.take()
    assert [(o.request_id, o.new_token_ids, o.finish_reason) for o in outputs.message.outputs] == [
        ("a", [], FinishReason.ABORT),
        ("b", [], FinishReason.STOP),
    ]
    assert call.message.utility_output is not None


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_whatever_is_merged_reads_like_what_was_not(seed: int, steps: int) -> None:
    """Random deltas of several requests, held for random stretches: a reader sees the same streams."""
    chance = random.Random(seed)
    backlog = Backlog()
    said: dict[str, list[int]] = {}
    read: dict[str, list[int]] = {}

    def deliver() -> None:
        for routed in backlog.take():
            for output in routed.message.outputs:
                assert output.new_logprobs == (logprobs(*output.new_token_ids) if output.new_token_ids else None)
                read.setdefault(output.request_id, []).extend(output.new_token_ids)

    for _ in range(steps):
        outputs = []
        for name in chance.sample("abcd", chance.randint(1, 4)):
            tokens = [chance.randrange(1000) for _ in range(chance.randint(0, 3))]
            said.setdefault(name, []).extend(tokens)
            outputs.append(EngineCoreOutput(name, tokens, new_logprobs=logprobs(*tokens) if tokens else None))
        backlog.add(message(*outputs))
        if chance.random() < 0.2:
            deliver()
    deliver()
    assert read == said
