"""What no engine can serve: checks of a request before the engine sees it (receiver thread). Pure."""

from __future__ import annotations

from muro.engine.interface import EngineInfo
from muro.errors import InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from muro.wire.request import EngineCoreRequest


def check_request(request: EngineCoreRequest, info: EngineInfo) -> None:
    """Refuse what no engine can serve. Raises RequestError."""
    if (request.sampling_params is None) == (request.pooling_params is None):
        raise InvalidRequestError("exactly one of sampling_params and pooling_params must be set")
    if request.pooling_params is not None and not set(info.supported_tasks) - {"generate"}:
        raise UnsupportedOptionError("this engine only generates; it has no pooling task", param="pooling_params")
    if (
        (sampling := request.sampling_params) is not None
        and sampling.max_tokens is not None
        and sampling.max_tokens < 1
    ):
        raise InvalidRequestError(f"max_tokens is {sampling.max_tokens}; it must be at least 1", param="max_tokens")
    if request.prompt_embeds is None and not request.prompt_token_ids:
        raise InvalidRequestError("the prompt is empty", param="prompt_token_ids")
    length = prompt_length(request)
    # A prompt that fills the context leaves no room for a token; a pooling request needs none.
    room = info.max_model_len if request.sampling_params is None else info.max_model_len - 1
    if length > room:
        raise prompt_too_long(length, info)


def prompt_length(request: EngineCoreRequest) -> int:
    """Of a prompt, in tokens."""
    return len(request.prompt_token_ids or ()) or (request.prompt_embeds.shape[0] if request.prompt_embeds else 0)


def prompt_too_long(length: int, info: EngineInfo) -> PromptTooLongError:
    """The error for a prompt of `length` tokens."""
    return PromptTooLongError(
        f"the prompt has {length} tokens; the model takes {info.max_model_len} tokens, prompt and output together",
        param="prompt_token_ids",
    )
