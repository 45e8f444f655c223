"""pipeline.py: what is refused, what an engine is told, and pieces that do not depend on how deltas were merged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice, Standing, check_length, check_params, engine_params, fan_out
from muro.text.tokenizer import ByteTokenizer, HuggingFaceTokenizer
from muro.wire.arrays import tensor_from_numpy
from muro.wire.output import EngineCoreEvent, EngineCoreOutput, EventType, FinishReason, Logprobs
from muro.wire.request import OutputKind, SamplingParams, StructuredOutputsParams
from muro.wire.stats import PrefillStats
from tests.support.tokenizers import byte_level

BYTES = ByteTokenizer()


def outputs(cuts: list[list[int]], reason: FinishReason = FinishReason.LENGTH) -> list[EngineCoreOutput]:
    made = [EngineCoreOutput("r", ids) for ids in cuts]
    made[-1].finish_reason = reason
    return made


def choice(**params: Any) -> Choice:
    return Choice(0, "r", SamplingParams(**params), BYTES)


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("n", 0), ("n", 10**6), ("temperature", -1.0), ("temperature", math.nan), ("temperature", math.inf),
        ("top_p", 0.0), ("top_p", 1.5), ("top_p", math.nan), ("top_k", -2), ("top_k", 2**31), ("min_p", 2.0),
        ("max_tokens", 0), ("min_tokens", -1), ("min_tokens", 17), ("seed", 2**63), ("seed", -(2**63) - 1),
        ("stop", [""]), ("stop", ""),
    ],
)  # fmt: skip
def test_what_no_engine_can_serve_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_params(SamplingParams(**{option: value}))
    assert caught.value.param == option


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("n", "2"), ("n", 2.0), ("n", True), ("temperature", "hot"), ("temperature", True), ("top_p", None),
        ("top_k", 1.5), ("max_tokens", "5"), ("min_tokens", None), ("seed", "abc"), ("stop", 5), ("stop", [5]),
        ("stop_token_ids", 5), ("stop_token_ids", ["x"]), ("bad_words", [5]), ("detokenize", "x"), ("output_kind", 9),
        ("extra_args", 5), ("logit_bias", {"a": 1}), ("bad_words_token_ids", 5), ("min_p", object()),
        ("stop", [object()]), ("presence_penalty", "x"), ("structured_outputs", 5),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=option) as caught:
        check_params(SamplingParams(**{option: value}))
    assert caught.value.param == option


@pytest.mark.parametrize("params", [5, "hi", {"max_tokens": 2}, None, SamplingParams])
def test_what_are_no_parameters(params: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"a muro\.SamplingParams, not"):
        check_params(params)


@pytest.mark.parametrize(("option", "value"), [("prompt_logprob_token_ids", [1]), ("flat_logprobs", True)])
def test_what_outputs_do_not_carry_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"{option}.*not supported") as caught:
        check_params(SamplingParams(**{option: value}))
    assert caught.value.param == option


def test_extra_arguments_may_hold_what_only_the_wire_can_judge() -> None:
    check_params(SamplingParams(extra_args={"array": memoryview(b"x"), "tag": object()}))


def test_the_bounds_themselves_pass() -> None:
    check_params(SamplingParams(n=1024, temperature=0.0, top_p=1.0, top_k=-1, min_p=1.0, max_tokens=16, min_tokens=16))
    check_params(SamplingParams(seed=-(2**63), max_tokens=None, min_tokens=5, stop="x"))


def test_length() -> None:
    check_length(9, 10)
    check_length(8, 10, 2)
    with pytest.raises(PromptTooLongError, match="at least 10 tokens"):
        check_length(10, 10)
    with pytest.raises(PromptTooLongError, match="up to 3 are asked for") as caught:
        check_length(8, 10, 3)
    assert caught.value.param == "max_tokens"


def test_an_engine_is_told_all_that_it_cannot_know() -> None:
    params = SamplingParams(n=3, stop=["x"], stop_token_ids=[5], max_tokens=100, bad_words=["no"], detokenize=False)
    told = engine_params(params, 40, BYTES, 64)
    assert told.max_tokens == 24
    assert told.n == 1
    assert not told.stop
    assert told.eos_token_id == 257
    assert told.stop_token_ids == [5]
    assert told.all_stop_token_ids == [5, 257]
    assert told.bad_words_token_ids == [[110, 111], [32, 110, 111]]
    assert told.output_kind is OutputKind.DELTA
    assert engine_params(SamplingParams(max_tokens=None), 40, BYTES, 64).max_tokens == 24


def test_further_end_tokens_are_stop_tokens_to_an_engine() -> None:
    tokenizer = HuggingFaceTokenizer(byte_level(), eos_token_ids=[7, 8, 9])
    told = engine_params(SamplingParams(stop_token_ids=[3]), 1, tokenizer, 64)
    assert (told.eos_token_id, told.stop_token_ids, told.all_stop_token_ids) == (7, [3, 8, 9], [3, 7, 8, 9])
    told = engine_params(SamplingParams(stop_token_ids=[3], ignore_eos=True), 1, tokenizer, 64)
    assert (told.eos_token_id, told.stop_token_ids, told.all_stop_token_ids) == (None, [3], [3, 7, 8, 9])


def test_choices_have_seeds_of_their_own_within_64_bits() -> None:
    requests = fan_out("r", [1], SamplingParams(seed=2**63 - 2), 4, external_id="x")
    seeds = [request.sampling_params.seed for request in requests if request.sampling_params]
    assert seeds == [2**63 - 2, 2**63 - 1, -(2**63), -(2**63) + 1]
    assert [request.request_id for request in requests] == ["r-0", "r-1", "r-2", "r-3"]
    assert {request.external_req_id for request in requests} == {"x"}


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.data())
def test_pieces_joined_are_the_text_however_they_are_cut(text: str, data: st.DataObject) -> None:
    ids = BYTES.encode(text)
    made, mine, pieces = outputs([[token] for token in ids]), choice(), []
    while made:
        size = data.draw(st.integers(1, len(made)))
        pieces.append(mine.take(made[:size]))
        made = made[size:]
    assert text_of(pieces) == text
    assert mine.token_ids == ids == [token for piece in pieces for token in piece.token_ids]
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"


@given(st.text("abc", min_size=1, max_size=30), st.text("abc", min_size=1, max_size=3), st.integers(0, 5), st.data())
def test_a_stop_string_ends_it_at_the_same_token_however_deltas_are_merged(
    text: str, stop: str, min_tokens: int, data: st.DataObject
) -> None:
    ids = BYTES.encode(text)
    at = text.find(stop, min_tokens)
    made = outputs([[token] for token in ids])
    mine, pieces = choice(stop=stop, min_tokens=min_tokens), []
    while made and mine.finish_reason is None:
        size = data.draw(st.integers(1, len(made)))
        pieces.append(mine.take(made[:size]))
        made = made[size:]
    if at < 0:
        assert (text_of(pieces), mine.finish_reason, mine.stop_reason) == (text, "length", None)
        assert not mine.stopped_early
    else:
        assert (text_of(pieces), mine.finish_reason, mine.stop_reason) == (text[:at], "stop", stop)
        assert len(mine.token_ids) == at + len(stop) == sum(len(piece.token_ids) for piece in pieces)
        assert mine.stopped_early


def test_a_stop_string_can_be_part_of_the_text() -> None:
    mine = choice(stop=["lo"], include_stop_str_in_output=True)
    assert mine.take(outputs([BYTES.encode("hello world")])).text == "hello"


def test_half_a_character_at_the_end_is_told_as_such() -> None:
    assert choice().take(outputs([[0xC3]])).text == "\ufffd"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.ABORT, "abort"),
        (FinishReason.REPETITION, "repetition"),
    ],
)
def test_an_engines_reasons_in_words(reason: FinishReason, words: str) -> None:
    last = EngineCoreOutput("r", [], finish_reason=reason, stop_reason=42)
    piece = choice().take([last])
    assert (piece.text, piece.token_ids, piece.finish_reason, piece.stop_reason) == ("", [], words, 42)


def test_without_detokenisation_there_are_ids_alone() -> None:
    piece = choice(detokenize=False, stop=["b"]).take(outputs([BYTES.encode("abc")]))
    assert (piece.text, piece.token_ids) == ("", [97, 98, 99])


def said(*rows: list[int], ranks: list[int] | None = None) -> Logprobs:
    """Log-probabilities of -id each."""
    ids, ranks = np.array(rows, np.int32), ranks or [row[0] for row in rows]
    values = (-ids).astype(np.float32)
    return Logprobs(tensor_from_numpy(ids), tensor_from_numpy(values), tensor_from_numpy(np.array(ranks, np.int64)))


def logs(piece: Piece) -> list[list[tuple[int, float, int | None, str | None]]] | None:
    if piece.logprobs is None:
        return None
    return [[(i, p.logprob, p.rank, p.decoded_token) for i, p in row.items()] for row in piece.logprobs]


def test_log_probabilities_go_with_their_tokens() -> None:
    one = choice(logprobs=2, logprob_token_ids=[122])
    news = EngineCoreOutput("r", [97], new_logprobs=said([97, 98, 97, 122], ranks=[2]))
    expected = [(97, -97.0, 2, "a"), (98, -98.0, 1, "b"), (122, -122.0, None, "z")]
    assert logs(one.take([news])) == [expected]
    more = [EngineCoreOutput("r", [i], new_logprobs=said([i, 98, 97, 122])) for i in (99, 195)]
    more[-1].finish_reason = FinishReason.LENGTH
    piece = one.take(more)
    assert [row[0] for row in logs(piece) or ()] == [(99, -99.0, 99, "c"), (195, -195.0, 195, "\ufffd")]
    assert one.logprobs is not None and [next(iter(p)) for p in one.logprobs] == one.token_ids
    assert one.cumulative_logprob == -97 - 99 - 195


def test_a_stop_string_cuts_log_probabilities_where_it_cuts_tokens() -> None:
    one = choice(logprobs=0, stop=["bc"])
    piece = one.take([EngineCoreOutput("r", [97, 98, 99, 100], new_logprobs=said([97], [98], [99], [100]))])
    assert piece.token_ids == [97, 98, 99] and len(piece.logprobs or ()) == 3
    assert one.cumulative_logprob == -97 - 98 - 99


def test_log_probabilities_that_nobody_asked_for_or_gives() -> None:
    assert choice().take([EngineCoreOutput("r", [97], new_logprobs=said([97]))]).logprobs is None
    one = choice(logprobs=1)
    assert one.take(outputs([[97]])).logprobs is None
    assert (one.logprobs, one.cumulative_logprob, one.prompt_logprobs) == (None, None, None)


def test_log_probabilities_of_the_prompt_come_once_from_the_first_choice() -> None:
    requests = fan_out("r", [1], SamplingParams(prompt_logprobs=0), 3, external_id="x")
    assert [r.sampling_params and r.sampling_params.prompt_logprobs for r in requests] == [0, None, None]
    one = choice(prompt_logprobs=1)
    one.take([EngineCoreOutput("r", [97], new_prompt_logprobs_tensors=said([98, 97], [99, 98]))])
    one.take([EngineCoreOutput("r", [97])])
    assert one.prompt_logprobs is not None and one.prompt_logprobs[0] is None
    shown = [[(i, p.logprob, p.rank) for i, p in (row or {}).items()] for row in one.prompt_logprobs[1:]]
    assert shown == [[(98, -98.0, 98), (97, -97.0, 1)], [(99, -99.0, 99), (98, -98.0, 1)]]


def test_waiting_time_is_read_from_the_first_events() -> None:
    mine = choice()
    events = [EngineCoreEvent(EventType.QUEUED, 10.0), EngineCoreEvent(EventType.SCHEDULED, 10.5)]
    mine.take([EngineCoreOutput("r", [65], events=events)])
    assert mine.queued_seconds == 0.5


def test_each_choice_stands_where_its_request_does() -> None:
    for request in fan_out("r", [1], SamplingParams(), 2, external_id="x", standing=Standing(-3, "mine")):
        assert (request.priority, request.cache_salt) == (-3, "mine")


def test_cached_tokens_are_those_of_the_first_attempt() -> None:
    one = choice()
    assert one.cached_tokens is None
    one.take([EngineCoreOutput("r", [97], prefill_stats=PrefillStats(9, 1, 8, 8))])
    one.take([EngineCoreOutput("r", [97], prefill_stats=PrefillStats(10, 10))])
    assert one.cached_tokens == 8


def test_engines_of_others_are_told_what_compiles_a_grammar() -> None:
    """One that is not told, or told differently from request to request, may end."""
    for wanted in (StructuredOutputsParams(regex="a"), StructuredOutputsParams(regex="a", backend="guidance")):
        told = engine_params(SamplingParams(structured_outputs=wanted), 1, BYTES, 64).structured_outputs
        assert told == StructuredOutputsParams(regex="a", backend="guidance")
    assert engine_params(SamplingParams(), 1, BYTES, 64).structured_outputs is None
