"""chat.py: requests and answers as the official client writes and reads them."""

from __future__ import annotations

import msgspec
import pytest
from openai.types import chat

from muro.errors import InvalidRequestError
from muro.server.schemas.chat import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatMessage,
    ChunkChoice,
    Delta,
    max_tokens_of,
)
from muro.server.schemas.request import decode_request
from muro.server.schemas.usage import Usage


def request(**options: object) -> ChatCompletionRequest:
    return decode_request(msgspec.json.encode({"messages": [], **options}), ChatCompletionRequest)


def test_either_name_of_max_tokens() -> None:
    assert max_tokens_of(request()) is None
    assert max_tokens_of(request(max_tokens=3)) == 3
    assert max_tokens_of(request(max_completion_tokens=4)) == 4
    assert max_tokens_of(request(max_tokens=3, max_completion_tokens=4)) == 4


def test_messages_must_be_objects() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request(messages=["hi"])
    assert caught.value.param == "messages[0]"


def test_defaults_are_not_shared() -> None:
    request().chat_template_kwargs["x"] = 1
    assert request().chat_template_kwargs == {}


def test_answer_is_read_by_the_official_client() -> None:
    choice = ChatChoice(0, ChatMessage("Paris"), "stop", stop_reason=7)
    body = msgspec.json.encode(ChatCompletion("chatcmpl-1", 1_700_000_000, "m", [choice], Usage(3, 4, 7)))
    read = chat.ChatCompletion.model_validate_json(body, strict=True)
    assert read.choices[0].message.content == "Paris"
    assert (read.choices[0].message.role, read.choices[0].finish_reason) == ("assistant", "stop")


@pytest.mark.parametrize(
    ("delta", "plain"),
    [
        (Delta("assistant", ""), {"role": "assistant", "content": ""}),
        (Delta(content="x"), {"content": "x"}),
        (Delta(), {}),
    ],
)
def test_chunk_is_read_by_the_official_client(delta: Delta, plain: dict[str, str]) -> None:
    body = msgspec.json.encode(ChatCompletionChunk("chatcmpl-1", 1, "m", [ChunkChoice(0, delta)]))
    assert msgspec.json.decode(body)["choices"][0]["delta"] == plain
    read = chat.ChatCompletionChunk.model_validate_json(body, strict=True)
    assert read.choices[0].delta.content == plain.get("content")
    assert read.choices[0].finish_reason is None
