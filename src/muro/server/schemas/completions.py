"""`POST /v1/completions`. A streamed chunk has the same shape as the whole answer."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec

from muro.errors import InvalidRequestError
from muro.server.schemas.logprobs import CompletionLogprobs, PromptLogprobs
from muro.server.schemas.request import MAX_CHOICES, Count, GenerationOptions, TopCount
from muro.server.schemas.usage import Usage
from muro.wire.request import TokenId

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""


class CompletionRequest(GenerationOptions, kw_only=True):
    """Body of `POST /v1/completions`; `prompt` as text, token ids, or a list of either. `max_tokens` may be 0 if the
    prompt is echoed: then its log-probabilities are all that is computed."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], msgspec.Meta(min_length=1)]
    max_tokens: Count | None = None
    logprobs: TopCount | bool | None = None
    echo: bool = False
    add_special_tokens: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logprobs is True:
            raise InvalidRequestError("logprobs is a number of tokens here, not true", param="logprobs")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequestError("max_tokens is 0; it must be at least 1 unless echo is true", param="max_tokens")

    @property
    def top(self) -> int | None:
        """How many of the most probable tokens to tell in each place; None: no log-probabilities."""
        return None if self.logprobs is False else self.logprobs

    def wanted_logprobs(self) -> tuple[int | None, int | None]:
        """See `GenerationOptions`: what is echoed has log-probabilities like what follows."""
        top, asked = self.top, self.prompt_logprobs
        if not self.echo or top is None:
            return top, asked
        return top, -1 if -1 in (top, asked) else max(top, asked or 0)


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
    """One continuation, or its next piece. vLLM's additions: `stop_reason`, the stop string or stop id;
    `prompt_logprobs`, if they were asked for."""

    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    """Answer or chunk. `created` in Unix seconds; `usage` is left out of chunks unless asked for."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"
