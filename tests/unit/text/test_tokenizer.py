"""tokenizer.py: ids and special ids as the model directory says, errors that name the file."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import ConfigError, InvalidRequestError, MissingExtraError
from muro.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from tests.support.tokenizers import byte_fallback, byte_level, wrap

BYTES = ByteTokenizer()
LEVEL = wrap(byte_level())
FALLBACK = wrap(byte_fallback())


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<|start|>", "lstrip": False}, "eos_token": "<|end|>", "model_max_length": 1e30}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


def test_bytes_know_their_special_ids() -> None:
    ids = [256, *BYTES.encode("é<|eos|>"), 257, 300, -1]
    assert BYTES.decode(ids) == "é<|eos|>"
    assert BYTES.decode(ids, skip_special=False) == "<|bos|>é<|eos|><|eos|>"
    assert 257 not in BYTES.encode("<|eos|>")
    assert (BYTES.token(0xE2), BYTES.token(257), BYTES.token(258), BYTES.token(-1)) == ("<0xE2>", "<|eos|>", None, None)


@pytest.mark.parametrize("tokenizer", [BYTES, LEVEL, FALLBACK], ids=["bytes", "byte level", "byte fallback"])
def test_lone_surrogate_is_the_callers_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="character 2"):
        tokenizer.encode("ab\ud800")


@given(st.lists(st.integers(0, LEVEL.vocab_size + 3), max_size=30), st.booleans())
def test_byte_table_is_how_the_library_decodes(ids: list[int], skip: bool) -> None:
    table = LEVEL.byte_table
    assert table is not None
    data = b"".join(table.get(i, b"") for i in ids if not (skip and i in LEVEL.special_ids))
    assert data.decode("utf-8", "replace") == LEVEL.decode(ids, skip_special=skip)


@given(st.text(st.characters(codec="utf-8")))
def test_fewest_tokens_is_a_lower_bound(text: str) -> None:
    for tokenizer in (BYTES, LEVEL, FALLBACK):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


def test_fewest_tokens_grows_with_the_text() -> None:
    assert BYTES.fewest_tokens("abc") == 3
    assert LEVEL.fewest_tokens("a" * 10_000) > 400
    assert FALLBACK.fewest_tokens("a" * 10_000) == 0


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    text = "hello world, the quick brown fox " * 20_000
    done = threading.Event()
    worker = threading.Thread(target=lambda: (LEVEL.encode(text), done.set()))
    worker.start()
    rounds = 0
    while not done.wait(0.001):
        rounds += 1
    worker.join()
    assert rounds >= 5  # with the lock held it is one or two


def test_only_byte_level_has_a_byte_table() -> None:
    assert FALLBACK.byte_table is None
    assert FALLBACK.token(3) == "<0x00>"
    assert FALLBACK.token(10_000) is FALLBACK.token(-1) is None
    assert FALLBACK.decode([-1, 10_000]) == ""


def test_no_model_directory_means_bytes() -> None:
    assert isinstance(load_tokenizer(None), ByteTokenizer)


def test_special_ids_from_the_directory(model_dir: Path) -> None:
    (model_dir / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    tokenizer = load_tokenizer(model_dir)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.eos_token_ids == (1, 7)
    (model_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 1, 9]}))
    assert load_tokenizer(model_dir).eos_token_ids == (1, 5, 9)
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}


def test_end_token_from_generation_config_alone(model_dir: Path) -> None:
    (model_dir / "tokenizer_config.json").unlink()
    (model_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    tokenizer = load_tokenizer(model_dir)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eos_token_ids) == (None, 9, (9,))


def test_truncation_and_padding_in_the_file_do_not_count(model_dir: Path) -> None:
    inner = byte_level()
    inner.enable_truncation(max_length=3)
    inner.enable_padding(length=8)
    inner.save(str(model_dir / "tokenizer.json"))
    text = "hello world, the quick brown fox"
    assert load_tokenizer(model_dir).encode(text) == LEVEL.encode(text)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", '{"eos_token": 3}'),
        ("generation_config.json", '{"eos_token_id": "two"}'),
    ],
)
def test_wrong_file_is_named(model_dir: Path, name: str, content: str) -> None:
    (model_dir / name).write_text(content)
    with pytest.raises(ConfigError, match=name):
        load_tokenizer(model_dir)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_missing_extra_is_named(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'muro\[text\]'"):
        load_tokenizer(model_dir)
