"""JSON schemas as data: how deep and how large they are, and a rewriting that closes objects. Does not validate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muro.errors import InvalidRequestError

MAX_DEPTH = 64
"""Objects and arrays within each other in the text of a schema."""
MAX_JOINED_PATTERNS = 8
"""Patterns and formats in a schema that also joins schemas (`allOf`): the work to compile may double with each."""

_PARAM = "structured_outputs"

# Where schemas stand within a schema (JSON Schema, draft 2020-12 and before).
_ONE = ("additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def measure(schema: Any) -> str:
    """All regular expressions of a schema, in one text.

    Raises:
        InvalidRequestError: it is nested too deeply, or joins too many patterns.
    """
    patterns: list[str] = []
    restricted, joins = 0, False
    level, depth = [schema], 0
    while level:
        if depth > MAX_DEPTH:
            what = f"{_PARAM}.json is nested more than {MAX_DEPTH} deep"
            raise InvalidRequestError(what, param=_PARAM)
        for value in level:
            if isinstance(value, dict):
                found = [value[key] for key in ("pattern", "format") if isinstance(value.get(key), str)]
                named = value.get("patternProperties")
                found += list(named) if isinstance(named, dict) else []
                patterns += map(str, found)
                restricted += len(found)
                joins = joins or "allOf" in value or ("$ref" in value and bool(found))
        level = [child for value in level for child in _children(value)]
        depth += 1
    if joins and restricted > MAX_JOINED_PATTERNS:
        what = f"{_PARAM}.json has allOf and more than {MAX_JOINED_PATTERNS} patterns and formats"
        raise InvalidRequestError(what, param=_PARAM)
    return "\n".join(patterns)


def close_objects(schema: Any) -> Any:
    """The same schema, but that objects have no other properties than those it names, where it does not say so."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in _ONE:
        if isinstance(closed.get(key), dict):
            closed[key] = close_objects(closed[key])
    for key in _MANY:
        if isinstance(closed.get(key), list):
            closed[key] = [close_objects(part) for part in closed[key]]
    for key in _NAMED:
        if isinstance(closed.get(key), dict):
            closed[key] = {name: close_objects(part) for name, part in closed[key].items()}
    about_objects = closed.get("type") == "object" or "properties" in closed or "patternProperties" in closed
    if about_objects and not closed.keys() & {"additionalProperties", "unevaluatedProperties"}:
        closed["additionalProperties"] = False
    return closed


def _children(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (part for part in parts if isinstance(part, dict | list))
