"""logprobs.py: both of OpenAI's forms, ties, and what JSON cannot say."""

from __future__ import annotations

import math

from muro.llm.logprobs import Logprob, Position
from muro.llm.spelling import Offsets, Spelling
from muro.server.schemas.logprobs import (
    LEAST,
    chat_logprobs,
    completion_logprobs,
    joined_logprobs,
    most_probable,
    named_by_id,
    prompt_logprobs,
)
from muro.text.tokenizer import ByteTokenizer

BYTES = Spelling(ByteTokenizer())


def position(*entries: tuple[int, float, int]) -> Position:
    return {token_id: Logprob(logprob, rank) for token_id, logprob, rank in entries}


A_OVER_B = position((97, -0.5, 1), (98, -1.0, 2))
C_THEN_A_B = position((99, -9.0, 7), (97, -0.5, 1), (98, -1.0, 2))


def test_the_most_probable_ones_come_in_descending_order_with_or_without_the_one_that_came() -> None:
    assert [i for i, _ in most_probable(C_THEN_A_B, 2)] == [97, 98]
    assert [i for i, _ in most_probable(C_THEN_A_B, -1)] == [97, 98, 99]
    assert [i for i, _ in most_probable(A_OVER_B, 2)] == [97, 98]
    assert most_probable(A_OVER_B, 0) == most_probable(position((99, -9.0, 7)), 0) == []
    tie = position((98, -0.5, 2))  # as probable as another one, and the one of the two that was reported
    assert [i for i, _ in most_probable(tie, 1)] == [98]


def test_a_chat() -> None:
    said = chat_logprobs([C_THEN_A_B], 2, BYTES).content
    assert said is not None
    (entry,) = said
    assert (entry.token, entry.logprob, entry.bytes) == ("c", -9.0, [99])
    assert [(top.token, top.logprob, top.bytes) for top in entry.top_logprobs] == [("a", -0.5, [97]), ("b", -1.0, [98])]
    by_id = chat_logprobs([A_OVER_B], 2, BYTES, by_id=True).content
    assert by_id is not None and by_id[0].token == by_id[0].top_logprobs[0].token == "token_id:97"


def test_a_completion() -> None:
    offset = Offsets(ByteTokenizer(), 5)
    said = completion_logprobs([97, 99], [None, C_THEN_A_B], offset, BYTES.in_completion)
    assert (said.tokens, said.token_logprobs, said.text_offset) == (["a", "c"], [None, -9.0], [5, 6])
    assert said.top_logprobs == [None, {"a": -0.5, "b": -1.0, "c": -9.0}]
    more = completion_logprobs([97], [A_OVER_B], offset, named_by_id)
    whole = joined_logprobs([said, more])
    assert (whole.tokens, whole.text_offset) == (["a", "c", "token_id:97"], [5, 6, 7])
    assert len(whole.top_logprobs) == len(whole.token_logprobs) == 3


def test_json_knows_no_infinity() -> None:
    never = position((97, -math.inf, 3))
    assert prompt_logprobs([None, never])[1] is not None
    (_, row) = prompt_logprobs([None, never])
    assert row is not None and (row[97].logprob, row[97].rank) == (LEAST, 3)
    assert completion_logprobs([97], [never], Offsets(ByteTokenizer()), named_by_id).token_logprobs == [LEAST]
