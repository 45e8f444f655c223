"""completions.py: the forms of a prompt; answers that the official client reads."""

from __future__ import annotations

from typing import Any

import msgspec
import openai.types
import pytest

from muro.errors import InvalidRequestError
from muro.server.schemas.completions import Completion, CompletionChoice, CompletionRequest, prompts_of
from muro.server.schemas.request import decode_request
from muro.server.schemas.usage import Usage


def prompts(prompt: Any, n: int = 1) -> list[str | list[int]]:
    return prompts_of(decode_request(msgspec.json.encode({"prompt": prompt, "n": n}), CompletionRequest))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", [""]),
        ("text", ["text"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([0], [[0]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_forms_of_a_prompt(prompt: Any, expected: list[str | list[int]]) -> None:
    assert prompts(prompt) == expected


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []], ["a", 1], [[1], 1], [1.5], [-1], [2**31], {}, 3, [["a"]]])
def test_wrong_prompts(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prompts(prompt)
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompt")


def test_number_of_choices_is_bounded() -> None:
    assert len(prompts(["a"] * 8, n=128)) == 8
    with pytest.raises(InvalidRequestError, match="1024 choices"):
        prompts(["a"] * 9, n=128)


def test_answer_is_read_by_the_official_client() -> None:
    choices = [CompletionChoice(0, "ünï", "stop", stop_reason="###"), CompletionChoice(1, "", "length")]
    body = msgspec.json.encode(Completion("cmpl-1", 1_700_000_000, "m", choices, Usage(3, 4, 7)))
    read = openai.types.Completion.model_validate_json(body, strict=True)
    assert read.object == "text_completion"
    assert [(c.index, c.text, c.finish_reason) for c in read.choices] == [(0, "ünï", "stop"), (1, "", "length")]
    assert read.usage is not None
    assert read.usage.total_tokens == 7


def test_usage_is_absent_null_or_given() -> None:
    chunk = Completion("cmpl-1", 1, "m", [])
    assert b"usage" not in msgspec.json.encode(chunk)
    chunk.usage = None
    assert msgspec.json.decode(msgspec.json.encode(chunk))["usage"] is None
