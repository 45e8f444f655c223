"""words.py: which model is meant, prompts in all their forms, and lengths that are known before anything costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muro.config import EngineConfig
from muro.errors import ConfigError, InvalidRequestError, PromptTooLongError
from muro.llm.words import (
    INLINE_CHARS,
    ModelChoice,
    Words,
    cache_salt_of,
    effective_length,
    load_words,
    make_choice,
    split_prompt,
)
from muro.text.chat import ChatTemplate
from muro.text.tokenizer import ByteTokenizer


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MURO_HOME", str(tmp_path / "home"))


def words(max_model_len: int = 100) -> Words:
    return Words(ByteTokenizer(), ChatTemplate(), max_model_len)


def test_a_model_is_run_by_the_engine_for_models(tmp_path: Path) -> None:
    choice = ModelChoice(model=str(tmp_path), max_model_len=99, options={"threads": "1"})
    config = choice.engine_config(EngineConfig(log_level="DEBUG"))
    assert (config.engine, config.model, config.log_level) == ("openvino", str(tmp_path), "DEBUG")
    assert config.options == {"threads": "1", "max_model_len": 99}
    assert choice.names() == [tmp_path.name, str(tmp_path)]


def test_the_engine_of_vllm_is_told_the_length_too(tmp_path: Path) -> None:
    config = ModelChoice(model=str(tmp_path), engine="vllm", max_model_len=99).engine_config()
    assert (config.engine, config.options) == ("vllm", {"max_model_len": 99})


def test_an_engine_alone_is_served_under_its_name_with_bytes() -> None:
    choice = ModelChoice(engine="echo", max_model_len=50)
    assert choice.engine_config().options == {}  # only the front-end minds the length then
    assert choice.names() == ["echo"]
    tokenizer, template = load_words(choice)
    assert isinstance(tokenizer, ByteTokenizer)
    assert template is not None


def test_keywords_are_fields_of_the_choice() -> None:
    assert make_choice("small", {"engine": "echo"}) == ModelChoice(model="small", engine="echo")
    with pytest.raises(ConfigError, match=r"no setting deep; settings are chat_template, engine, .*, tokenizer"):
        make_choice(None, {"deep": True})


def test_nothing_named_or_nothing_there() -> None:
    with pytest.raises(ConfigError, match="an engine that needs none, such as echo"):
        ModelChoice().engine_config()
    with pytest.raises(ConfigError, match="muro pull demo"):
        ModelChoice(model="demo").engine_config()


def test_a_chat_template_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages[0].content }}!")
    template = load_words(ModelChoice(engine="echo", chat_template=str(path)))[1]
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "hi!"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_words(ModelChoice(engine="echo", chat_template=str(tmp_path / "missing")))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ("hi", "hi")),
        ([1, 2], (None, [1, 2])),
        ({"prompt": "hi"}, ("hi", "hi")),
        ({"prompt_token_ids": [1]}, (None, [1])),
    ],
)
def test_prompts_in_all_forms(prompt: Any, expected: Any) -> None:
    assert split_prompt(prompt) == expected


@pytest.mark.parametrize("prompt", [5, None, [1, "a"], [True], {"prompt": 3}, {"prompt_token_ids": ["x"]}])
def test_other_forms_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a text, a list of token ids"):
        split_prompt(prompt)


def test_an_absurd_text_is_refused_without_being_tokenised() -> None:
    class Watched(ByteTokenizer):
        def encode(self, text: str, *, add_special: bool = True) -> list[int]:
            raise AssertionError("tokenised")

    with pytest.raises(PromptTooLongError):
        Words(Watched(), None, 100).encode("x" * 10_000_000)


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        words().encode(prompt)


def test_the_limit_itself() -> None:
    assert len(words().encode("x" * 99)) == 99
    assert words().encode([7] * 99) == [7] * 99
    for prompt in ("x" * 100, [7] * 100):
        with pytest.raises(PromptTooLongError):
            words().encode(prompt)


def test_long_texts_are_tokenised_and_rendered_elsewhere_with_the_same_result() -> None:
    text = "é" * INLINE_CHARS
    big = words(1 << 20)

    async def both() -> tuple[list[int], str]:
        return await big.encode_async(text), await big.render_async([{"role": "user", "content": text}], len(text))

    ids, rendered = asyncio.run(both())
    assert ids == big.encode(text)
    assert rendered == big.render([{"role": "user", "content": text}])


def test_a_model_without_a_template_cannot_chat() -> None:
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        Words(ByteTokenizer(), None, 100).render([{"role": "user", "content": "x"}])


def test_the_length_of_the_context() -> None:
    assert effective_length([100, 50], None) == 50
    assert effective_length([100], 60) == 60
    with pytest.raises(ConfigError, match="takes 100"):
        effective_length([100], 101)


def test_a_prompt_may_carry_a_cache_salt() -> None:
    assert cache_salt_of({"prompt": "a", "cache_salt": "mine"}) == "mine"
    assert cache_salt_of({"prompt": "a"}) is None and cache_salt_of("a") is None and cache_salt_of([1]) is None
    for salt in ("", 5):
        with pytest.raises(InvalidRequestError) as caught:
            cache_salt_of({"prompt": "a", "cache_salt": salt})
        assert caught.value.param == "cache_salt"


def test_a_setting_of_the_engines_is_told_its_place() -> None:
    with pytest.raises(ConfigError, match=r"no setting num_engines; .*connect=muro\.ConnectConfig\(num_engines="):
        make_choice(None, {"engine": "echo", "num_engines": 2})
