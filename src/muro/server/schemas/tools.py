"""Tools in chats, as OpenAI has them: what a request offers, and the calls in an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from muro.errors import InvalidRequestError

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


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def forced_schema(tools: Sequence[Tool], choice: ToolChoice, *, several: bool) -> dict[str, Any] | None:
    """The JSON schema of an answer that must be calls: the arguments of the tool that is named, or a list of objects
    with name and parameters. None if calls are up to the model.

    Raises InvalidRequestError if two tools define different things by the same name in `$defs`.
    """
    if isinstance(choice, NamedTool):
        return next(_parameters(t.function) for t in tools if t.function.name == choice.function.name)
    if choice != "required":
        return None
    shared: dict[str, Any] = {}
    calls = [_call_schema(tool.function, shared) for tool in tools]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not several:
        schema["maxItems"] = 1
    return {**schema, "$defs": shared} if shared else schema


def _call_schema(function: FunctionDefinition, shared: dict[str, Any]) -> dict[str, Any]:
    """Of one call; what its parameters define moves to the top, where references look for it."""
    parameters = dict(_parameters(function))
    for name, definition in parameters.pop("$defs", {}).items():
        if shared.setdefault(name, definition) != definition:
            raise InvalidRequestError(f"two tools define {name!r} in $defs, and not alike", param="tools")
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _parameters(function: FunctionDefinition) -> dict[str, Any]:
    return function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


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
