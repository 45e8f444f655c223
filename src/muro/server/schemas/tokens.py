"""`POST /tokenize` and `POST /detokenize`, in the shapes of vLLM's server."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from muro.errors import InvalidRequestError
from muro.server.schemas.tools import Tool
from muro.wire.request import TokenId


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text (`prompt`), or a chat (`messages`) as the chat template writes it. `add_special_tokens`: the tokenizer's
    own at the beginning and end; by default for texts, since templates write them themselves."""

    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Annotated[list[Tool], msgspec.Meta(max_length=1024)] = msgspec.field(default_factory=list)
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("give either prompt or messages", param="prompt")


class TokenizeResponse(msgspec.Struct):
    """The tokens, and how many there may be of prompt and output together; `token_strs` as the vocabulary has them."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Tokens to be made a text."""

    tokens: list[TokenId]
    model: str = ""


class DetokenizeResponse(msgspec.Struct):
    """The text, special tokens by their names."""

    prompt: str
