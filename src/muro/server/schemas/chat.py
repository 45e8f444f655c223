"""`POST /v1/chat/completions`. Messages stay plain objects here: `text.chat` checks them, for every caller alike."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from muro.errors import InvalidRequestError
from muro.server.schemas.logprobs import ChatLogprobs, PromptLogprobs
from muro.server.schemas.request import GenerationOptions, Positive, Structure, TopCount
from muro.server.schemas.tools import NamedTool, Tool, ToolCall, ToolCallDelta, ToolChoice, forced_schema
from muro.server.schemas.usage import Usage
from muro.wire.request import StructuredOutputsParams


class ChatCompletionRequest(GenerationOptions, kw_only=True):
    """Body of `POST /v1/chat/completions`. The last three fields are vLLM's additions. `tool_choice` leaves it to the
    model by default; "none" shows it the tools, but takes what it writes as text; "required" and a name hold the whole
    answer to calls."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Positive | None = None
    logprobs: bool = False
    top_logprobs: TopCount = 0
    tools: Annotated[list[Tool], msgspec.Meta(max_length=1024)] = msgspec.field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        if self.tool_choice == "required" and not self.tools:
            raise InvalidRequestError("tool_choice is required, but there are no tools", param="tool_choice")
        names = [tool.function.name for tool in self.tools]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            what = f"tool_choice names {self.tool_choice.function.name!r}, which is none of the tools"
            raise InvalidRequestError(what, param="tool_choice")

    def structure(self) -> Structure | None:
        """See `GenerationOptions`: a call that must be made is held to the schema of its tool."""
        schema = forced_schema(self.tools, self.tool_choice, several=self.parallel_tool_calls)
        asked = super().structure()
        if schema is None:
            return asked
        if asked is not None:
            what = f"{asked.option} and this tool_choice both ask for a structure; give one of them"
            raise InvalidRequestError(what, param=asked.option)
        return Structure("tool_choice", StructuredOutputsParams(json=schema))

    @property
    def calls_tools(self) -> bool:
        """Whether calls are looked for in the answer."""
        return bool(self.tools) and self.tool_choice != "none"

    def wanted_logprobs(self) -> tuple[int | None, int | None]:
        """See `GenerationOptions`."""
        return (self.top_logprobs if self.logprobs else None), self.prompt_logprobs


def max_tokens_of(request: ChatCompletionRequest) -> int | None:
    """`max_completion_tokens`, or `max_tokens` as it was called before; None: up to the model's length."""
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


class ChatMessage(msgspec.Struct):
    """The assistant's message; there may be no content if there are tool calls."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One whole answer. `stop_reason` (vLLM's addition): the stop string or stop id."""

    index: int
    message: ChatMessage
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct):
    """The answer when it is not streamed. `created` in Unix seconds; `prompt_logprobs` (vLLM's) if asked for."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct):
    """What a chunk adds to the message: first the role, then pieces of content and of tool calls."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    """The next piece of one answer; the last has a `finish_reason`."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    logprobs: ChatLogprobs | None = None


class ChatCompletionChunk(msgspec.Struct):
    """One event of a streamed answer; `usage` is left out unless asked for."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
