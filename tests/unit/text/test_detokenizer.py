"""detokenizer.py: however the ids are cut, the pieces joined are the full decode, and no piece is half a character."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, detokenizer_for
from muro.text.tokenizer import ByteTokenizer, Tokenizer
from tests.support.tokenizers import byte_fallback, byte_level, metaspace, wrap

TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "byte level": wrap(byte_level()),
    "byte fallback": wrap(byte_fallback()),
    "metaspace": wrap(metaspace()),
}
each = pytest.mark.parametrize("name", TOKENIZERS)


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    pieces = []
    for size in sizes:
        pieces.append(ids[:size])
        ids = ids[size:]
    return [*pieces, ids]


def stream(detokenizer: Detokenizer, pieces: list[list[int]]) -> str:
    return "".join([detokenizer.push(piece) for piece in pieces]) + detokenizer.flush()


@each
@given(data=st.data())
def test_joined_pieces_are_the_full_decode(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    common = st.sampled_from([*tokenizer.encode(" a€🙂é"), tokenizer.vocab_size - 1])
    ids = data.draw(st.lists(common | st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=40))
    skip = data.draw(st.booleans())
    text = stream(detokenizer_for(tokenizer, skip_special=skip), cut(ids, sizes))
    assert text == tokenizer.decode(ids, skip_special=skip)


@pytest.mark.parametrize("name", ["bytes", "byte level", "byte fallback"])
# ByteLevel reads an added token of Latin-1 letters as bytes of its alphabet; the library's full decode does so too.
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffdé")))
def test_no_piece_is_half_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    detokenizer = detokenizer_for(tokenizer)
    pieces = [detokenizer.push([i]) for i in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(tokenizer.encode(text))


def test_emoji_across_four_tokens() -> None:
    detokenizer = detokenizer_for(TOKENIZERS["bytes"])
    assert [detokenizer.push([b]) for b in "🙂".encode()] == ["", "", "", "🙂"]
    assert detokenizer.flush() == ""


def test_text_goes_out_with_the_token_that_completes_it() -> None:
    tokenizer = TOKENIZERS["byte level"]
    detokenizer = detokenizer_for(tokenizer)
    ids = tokenizer.encode("hello world")
    assert [detokenizer.push([i]) for i in ids] == [tokenizer.decode([i]) for i in ids]


def test_run_of_byte_tokens_waits_for_its_end() -> None:
    """The decoder reads `<0xE2><0x82><0xAC>` as a euro sign, but with a wrong byte after it as four U+FFFD."""
    tokenizer = TOKENIZERS["byte fallback"]
    euro = tokenizer.encode("€")[1:]
    detokenizer = detokenizer_for(tokenizer)
    assert [detokenizer.push([i]) for i in euro] == ["", "", ""]
    assert detokenizer.push(tokenizer.encode("a")) == "€ a"
    assert [detokenizer.push([i]) for i in [*euro, euro[0]]] == [""] * 4
    assert detokenizer.flush() == "\ufffd" * 4


def test_incomplete_end_becomes_replacement_characters() -> None:
    detokenizer = detokenizer_for(TOKENIZERS["bytes"])
    assert detokenizer.push([0x41, 0xF0, 0x9F]) == "A"
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_are_left_out_or_not() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = [0, *tokenizer.encode("hello"), 1]
    assert stream(detokenizer_for(tokenizer), [ids]) == "hello"
    assert stream(detokenizer_for(tokenizer, skip_special=False), [ids]) == "<|start|>hello<|end|>"


def test_the_tokenizer_decides_the_way() -> None:
    assert isinstance(detokenizer_for(TOKENIZERS["byte level"]), ByteDetokenizer)
    assert isinstance(detokenizer_for(TOKENIZERS["byte fallback"]), WindowDetokenizer)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_undecodable_run_costs_no_more_per_token_when_long(name: str) -> None:
    """A model that only emits continuation bytes must not make its own stream quadratic."""
    tokenizer = TOKENIZERS[name]
    bad = tokenizer.encode("€")[-1]

    def seconds(count: int) -> float:
        detokenizer = detokenizer_for(tokenizer)
        start = time.process_time()
        for _ in range(count):
            assert detokenizer.push([bad]) in {"", "\ufffd"}
        assert set(detokenizer.flush()) <= {"\ufffd"}
        return time.process_time() - start

    base = min(seconds(500) for _ in range(3))
    assert min(seconds(5_000) for _ in range(3)) < 40 * base  # linear is 10, quadratic 100
