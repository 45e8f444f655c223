"""engines/grammars.py: what an engine of a model directory compiles grammars with."""

from __future__ import annotations

from pathlib import Path

import pytest

from muro.core.grammar import GrammarSpec
from muro.engines import grammars
from muro.engines.grammars import workshop
from muro.errors import UnsupportedOptionError
from tests.support.deadline import until
from tests.support.tokenizers import byte_level

SPEC = GrammarSpec("regex", "ab")


def test_the_tokenizer_of_the_model_is_used(tmp_path: Path) -> None:
    inner = byte_level()
    inner.save(str(tmp_path / "tokenizer.json"))
    made = workshop(tmp_path, inner.get_vocab_size())
    try:
        one = made.order(SPEC)
        until(one.over, within=40)
        matcher = one.start()
        for token in inner.encode("ab").ids:
            matcher.consume(token)
        assert matcher.must_end()
    finally:
        made.close()


def test_without_a_model_tokens_are_bytes() -> None:
    made = workshop(None, 258)
    try:
        one = made.order(SPEC)
        until(one.over, within=40)
        one.start().consume(97)
    finally:
        made.close()


def test_a_model_without_a_tokenizer_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOptionError, match=r"tokenizer\.json") as caught:
        workshop(tmp_path, 100).order(SPEC)
    assert caught.value.param == "structured_outputs"


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(grammars, "is_installed", lambda: False)
    with pytest.raises(UnsupportedOptionError, match="pip install"):
        workshop(tmp_path, 100).order(SPEC)


def test_a_tokenizer_that_is_no_use_is_told_to_who_asks(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    made = workshop(tmp_path, 100)
    try:
        one = made.order(SPEC)
        until(lambda: one.error is not None, within=40)
        with pytest.raises(UnsupportedOptionError, match="tokenizer"):
            one.over()
    finally:
        made.close()
