"""spec.py: exactly one form, within all bounds, and errors that name the option."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muro.core.grammar import grammar_spec
from muro.core.grammar.spec import MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES
from muro.errors import InvalidRequestError
from muro.wire.request import StructuredOutputsParams


def spec(**options: Any) -> Any:
    return grammar_spec(StructuredOutputsParams(**options))


def nested(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "integer"}


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"json": {"type": "object"}}, "json", '{"type":"object"}'),
        ({"json": ' {"type": "object"}'}, "json", '{"type":"object"}'),
        ({"json_object": True}, "json", '{"type":"object"}'),
        ({"json_object": True, "json": None}, "json", '{"type":"object"}'),
        ({"regex": "a+", "json_object": False}, "regex", "a+"),
        ({"choice": ["a", 'b"', "a"]}, "grammar", 'start: "a" | "b\\""'),
        ({"grammar": "start: A"}, "grammar", "start: A"),
    ],
)
def test_each_form_becomes_one_text(options: dict[str, Any], kind: str, text: str) -> None:
    found = spec(**options)
    assert (found.kind, found.text) == (kind, text)


def test_equal_wishes_are_equal() -> None:
    assert spec(json={"type": "object"}) == spec(json='{"type":  "object"}')
    assert spec(json_object=True) != spec(json_object=True, disable_any_whitespace=True)


def test_objects_are_closed_if_that_is_wanted() -> None:
    schema = {"type": "object", "properties": {"a": {"properties": {"b": {}}}}}
    closed = json.loads(spec(json=schema, disable_additional_properties=True).text)
    assert closed["additionalProperties"] is False and closed["properties"]["a"]["additionalProperties"] is False
    assert "additionalProperties" not in schema


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regex": "a", "choice": ["b"]},
        {"json": "{"},
        {"json": "5"},
        {"json": '"' + "x" * MAX_SCHEMA_BYTES + '"'},
        {"json": {"enum": ["x" * MAX_SCHEMA_BYTES]}},
        {"json": nested(70)},
        {"json": "[" * 100_000},
        {"json": {"type": "string", "pattern": "a{100000}"}},
        {"json": {"allOf": [{"pattern": f"x{i}"} for i in range(20)]}},
        {"json": {"properties": {f"{i}": {"type": "string", "pattern": "x" * 1000} for i in range(20)}}},
        {"json_object": True, "whitespace_pattern": " " * 2000},
        {"choice": []},
        {"choice": ["x"] * 5000},
        {"choice": ["x" * MAX_SCHEMA_BYTES]},
        {"regex": "x" * (MAX_GRAMMAR_BYTES + 1)},
        {"regex": "(a{3,1000000})"},
        {"grammar": "start: A\nA: " + " & ".join(f"/.*x{i}.*/" for i in range(32))},
        {"grammar": 'start: "a"{1,1000000}'},
        {"structural_tag": "[]"},
        {"structural_tag": "{"},
    ],
)  # fmt: skip
def test_what_is_malformed_or_too_large_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs") as caught:
        spec(**options)
    assert caught.value.param == "structured_outputs"
    assert len(caught.value.message) < 500
