"""`response_format` (OpenAI's) and `structured_outputs` (vLLM's): what holds an answer to a structure.

Here is only what their parts may be called; what they may say is for the engine to judge.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muro.errors import InvalidRequestError
from muro.wire.request import StructuredOutputsParams


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Nothing is asked for."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(msgspec.Struct, kw_only=True):
    """A JSON schema. It is kept to the letter, `strict` or not; name and description are not looked at."""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any]
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: NamedSchema


class StructuralTagFormat(msgspec.Struct, tag_field="type", tag="structural_tag", omit_defaults=True):
    """Text in which certain words are followed by a structure (vLLM's addition), in one of two forms."""

    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of the first six (vLLM's addition)."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


def constraint(
    wanted: ResponseFormat | None, options: StructuredOutputs | None
) -> tuple[str, StructuredOutputsParams] | None:
    """The option that asks for a structure, and what it asks for in the wire's terms.

    Raises:
        InvalidRequestError: both ask for one.
    """
    params = None if wanted is None else _from_format(wanted)
    if options is None:
        return None if params is None else ("response_format", params)
    if params is not None:
        what = "response_format and structured_outputs both ask for a structure; give one of them"
        raise InvalidRequestError(what, param="structured_outputs")
    given = {name: getattr(options, name) for name in options.__struct_fields__}
    if isinstance(options.structural_tag, dict):
        given["structural_tag"] = msgspec.json.encode(options.structural_tag).decode()
    return "structured_outputs", StructuredOutputsParams(**given)


def _from_format(wanted: ResponseFormat) -> StructuredOutputsParams | None:
    match wanted:
        case JsonObjectFormat():
            return StructuredOutputsParams(json_object=True)
        case JsonSchemaFormat():
            return StructuredOutputsParams(json=wanted.json_schema.schema)
        case StructuralTagFormat():
            return StructuredOutputsParams(structural_tag=msgspec.json.encode(wanted).decode())
        case _:
            return None
