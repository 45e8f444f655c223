"""What is said depends on the tokens before it alone, and is made of words wherever these can be told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from muro.engines.sim.text import BYTES, LENGTH, continuation, text_for, words_of
from muro.errors import ConfigError


def test_what_follows_does_not_depend_on_what_was_generated_and_what_given() -> None:
    tokens = continuation(b"abc", 20)
    assert continuation([*b"abc", *tokens[:7]], 13) == tokens[7:]
    assert continuation(b"abd", 20) != tokens
    assert continuation(b"abc", 20, seed=1) != tokens
    assert continuation(b"abc", 0) == []


def test_bytes_make_words() -> None:
    words = bytes(continuation(b"Once upon", 200)).decode().split()
    assert len(set(words)) > 10 and all(word.isalpha() and word.islower() for word in words)


def test_a_digest_goes_on_where_it_was() -> None:
    text = text_for(BYTES)
    assert text.digest(b"cd", text.digest(b"ab")) == text.digest(b"abcd") != text.digest(b"abdc")
    assert text.after(text.digest(b"ab")) == text.continuation(b"ab", 1)[0]


def test_the_text_goes_round() -> None:
    text = text_for(BYTES)
    long = text.continuation(b"a", LENGTH + 5)
    assert long[:5] == long[LENGTH:]


def test_the_middle_of_a_vocabulary_that_tells_nothing() -> None:
    tokens = continuation([5, 6], 50, vocab_size=4096)
    assert min(tokens) >= 512 and max(tokens) < 3584 and len(set(tokens)) > 30


def letters(number: int) -> str:
    return "".join(chr(97 + int(digit)) for digit in f"{number:03}")


def write(directory: Path, vocab: object) -> Path:
    (directory / "tokenizer.json").write_bytes(msgspec.json.encode({"model": {"type": "BPE", "vocab": vocab}}))
    return directory


@pytest.mark.parametrize("mark", ["Ġ", "▁", ""])
@pytest.mark.parametrize("listed", [True, False])
def test_the_words_of_a_model(tmp_path: Path, mark: str, listed: bool) -> None:
    pieces = ["<s>", "##x", "Ġ", "Ġ7", "Q", *(mark + letters(n) for n in range(100))]
    vocab = [(piece, -1.0) for piece in pieces] if listed else {piece: i for i, piece in enumerate(pieces)}
    model = write(tmp_path, vocab)
    assert words_of(model) == list(range(5, 105))
    assert set(text_for(1000, 0, str(model)).ids) == set(range(5, 105))
    assert max(text_for(300, 3, str(write(tmp_path, {f"Ġ{letters(n)}": 4 * n for n in range(200)}))).ids) < 300


def test_a_model_whose_words_nobody_knows(tmp_path: Path) -> None:
    assert words_of(tmp_path) == []
    assert words_of(write(tmp_path, {"Ġword": 1})) == []
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        words_of(tmp_path)
