"""spelling.py: tokens that are no text, tokens in the middle of one, and offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.llm.spelling import Offsets, Spelling
from muro.text.tokenizer import ByteTokenizer
from tests.support.tokenizers import byte_fallback, byte_level, metaspace, wrap

BYTES = Spelling(ByteTokenizer())
EURO = list("a€".encode())


def test_tokens_that_are_no_text_are_written_by_their_bytes() -> None:
    assert [BYTES.in_chat(token) for token in EURO] == ["a", "\\xe2", "\\x82", "\\xac"]
    assert BYTES.in_completion(0xE2) == "bytes:\\xe2"
    assert b"".join(BYTES.of(token)[1] for token in EURO).decode() == "a€"


@pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace])
def test_tokens_joined_are_the_text(make: object) -> None:
    tokenizer = wrap(make())  # type: ignore[operator]
    spelling = Spelling(tokenizer)
    for text in ("a a", "a é a"):
        ids = tokenizer.encode(text, add_special=False)
        joined = b"".join(spelling.of(token)[1] for token in ids).decode(errors="replace")
        assert joined.strip() == tokenizer.decode(ids).strip()


def test_parts_of_a_character_stand_where_it_does() -> None:
    offset = Offsets(ByteTokenizer())
    assert [offset(token) for token in [*EURO, 98]] == [0, 1, 1, 1, 2]


@given(st.text(max_size=30))
def test_offsets_point_into_the_text(text: str) -> None:
    tokenizer = wrap(byte_level())
    ids = tokenizer.encode(text, add_special=False)
    offset, decoded = Offsets(tokenizer, skip_special=False), tokenizer.decode(ids, skip_special=False)
    for number, token in enumerate(ids):
        at = offset(token)
        assert tokenizer.decode(ids[:number], skip_special=False)[:at] == decoded[:at]
