"""schema.py: schemas as data."""

from __future__ import annotations

from typing import Any

import pytest

from muro.core.grammar.schema import MAX_DEPTH, close_objects, measure
from muro.errors import InvalidRequestError
from tests.support.schemas import examples


def test_patterns_and_formats_are_found_wherever_they_stand() -> None:
    schema = {
        "properties": {"a": {"pattern": "p1"}, "b": {"items": [{"format": "date"}]}},
        "patternProperties": {"p2": {"anyOf": [{"pattern": "p3"}]}},
    }
    assert set(measure(schema).split("\n")) == {"p1", "date", "p2", "p3"}


@pytest.mark.parametrize("wrong", [{"pattern": 5}, {"patternProperties": []}, {"properties": 7}, True, []])
def test_what_is_no_schema_is_left_to_others(wrong: Any) -> None:
    assert measure(wrong) == ""
    close_objects(wrong)


def test_depth_is_bounded_without_recursion() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequestError, match=str(MAX_DEPTH)):
        measure(deep)


def test_only_schemas_are_closed() -> None:
    schema = {
        "type": "object",
        "properties": {"properties": {"type": "object", "additionalProperties": True}, "type": {"const": 5}},
        "enum": [{"properties": {}}],
        "$ref": "#/$defs/x",
        "$defs": {"x": {"anyOf": [{"type": "object"}, {"type": "object", "unevaluatedProperties": False}]}},
    }  # fmt: skip
    closed = close_objects(schema)
    assert closed["additionalProperties"] is False
    assert closed["properties"] == schema["properties"]
    assert closed["enum"] == schema["enum"]
    assert closed["$defs"]["x"]["anyOf"] == [
        {"type": "object", "additionalProperties": False},
        {"type": "object", "unevaluatedProperties": False},
    ]


def test_no_schema_of_the_suite_is_refused() -> None:
    for example in examples():
        measure(example.schema)
