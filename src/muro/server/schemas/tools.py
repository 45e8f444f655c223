"""Tools in chats, as OpenAI has them: what a request offers, and the calls in an answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

ToolName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class FunctionDefinition(msgspec.Struct, omit_defaults=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """One tool; templates see these fields, in this order."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(msgspec.Struct):
    """Which function."""

    name: ToolName


class NamedTool(msgspec.Struct):
    """`tool_choice` that names one."""

    function: NamedFunction
    type: Literal["function"] = "function"


class FunctionCall(msgspec.Struct):
    """What is called with which arguments (JSON in a text, as the model wrote it)."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """One call of an answer."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionDelta(msgspec.Struct):
    """What a chunk adds to a call: first its name, then more of its arguments."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallDelta(msgspec.Struct):
    """A chunk's news of the call of this index; id and type come with the first."""

    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
