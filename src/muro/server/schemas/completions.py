"""`POST /v1/completions`. A streamed chunk has the same shape as the whole answer."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec

from muro.errors import InvalidRequestError
from muro.server.schemas.request import MAX_CHOICES, GenerationOptions
from muro.server.schemas.usage import Usage
from muro.wire.request import TokenId

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""


class CompletionRequest(GenerationOptions, kw_only=True):
    """Body of `POST /v1/completions`; `prompt` as text, token ids, or a list of either."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], msgspec.Meta(min_length=1)]
    add_special_tokens: bool = True


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts, each as text or as token ids.

    Raises:
        InvalidRequestError: the list mixes forms, a list of token ids is empty, or there are too many.
    """
    prompt = request.prompt
    prompts: list[str | list[int]]
    if isinstance(prompt, str):
        prompts = [prompt]
    else:
        # A list may hold millions of ids: it is looked through once, and not copied.
        if len(set(map(type, prompt))) > 1:
            raise InvalidRequestError("prompt mixes texts, token ids and lists of token ids", param="prompt")
        prompts = cast("list[str | list[int]]", [prompt] if isinstance(prompt[0], int) else prompt)
    if [] in prompts:
        raise InvalidRequestError("prompt holds an empty list of token ids", param="prompt")
    if len(prompts) * request.n > MAX_CHOICES:
        what = f"{len(prompts)} prompts times n={request.n} are more than {MAX_CHOICES} choices"
        raise InvalidRequestError(what, param="prompt")
    return prompts


class CompletionChoice(msgspec.Struct):
    """One continuation, or its next piece. `stop_reason` (vLLM's addition): the stop string or stop id."""

    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: None = None


class Completion(msgspec.Struct):
    """Answer or chunk. `created` in Unix seconds; `usage` is left out of chunks unless asked for."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"
