"""tags.py: text is free, until one of the words comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muro.core.grammar.tags import tags_to_lark
from muro.errors import InvalidRequestError, UnsupportedOptionError
from tests.support.grammars import allowed, state

TOOLS = {
    "structures": [
        {"begin": "<f=one>", "schema": {"const": 1}, "end": "</f>"},
        {"begin": "<f=two>", "schema": {"type": "boolean"}, "end": "</f>"},
        {"begin": "[x", "schema": {"const": "\\"}, "end": '"]'},
    ],
    "triggers": ["<f=", "["],
}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": value}


def text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def after(tag: dict[str, Any], begun: str) -> str:
    return allowed(state(structural_tag=json.dumps(tag)), begun)


def test_after_a_trigger_one_of_its_tags_follows() -> None:
    assert {"$", "a", "<", "["} <= set(after(TOOLS, "some text <f"))
    assert after(TOOLS, "some text <f=") == "ot"
    assert after(TOOLS, "some text <f=one>") == "1"
    assert after(TOOLS, "<f=one>1</f") == ">"
    assert after(TOOLS, "<f=two>") == "ft"
    assert after(TOOLS, '[x"\\\\"') == '"'
    assert {"$", "a", "<", "["} <= set(after(TOOLS, "<f=one>1</f> and <f=two>true</f> é"))


@pytest.mark.parametrize(
    ("form", "begun", "then"),
    [
        (text('a"b'), "a", '"'),
        (schema({"const": 5}), "", "5"),
        ({"type": "sequence", "elements": [text("a"), schema({"const": 5}), text("b")]}, "a5", "b"),
        ({"type": "or", "elements": [text("ab"), text("cd")]}, "", "ac"),
        ({"type": "tag", "begin": "<a>", "content": schema({"const": 1}), "end": "</a>"}, "<a>1", "<"),
        ({"type": "tag", "begin": "<a>", "content": schema({"const": 1}), "end": ["</a>"]}, "<a>1", "<"),
        ({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}, "<a>x</a>", "$"),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [{"begin": "<a>", "content": text("x"), "end": ""}],
                "at_least_one": True,
                "stop_after_first": True,
            },
            "<a>x",
            "$",
        ),
    ],
)
def test_formats(form: dict[str, Any], begun: str, then: str) -> None:
    grammar = state(structural_tag=json.dumps({"type": "structural_tag", "format": form}))
    found = allowed(grammar, begun)
    assert found == then or (then == "$" and (grammar.is_complete(list(begun.encode())) or "$" in found))


def nested(depth: int) -> dict[str, Any]:
    return {"type": "sequence", "elements": [nested(depth - 1)]} if depth else text("a")


@pytest.mark.parametrize(
    "tag",
    [
        5,
        {},
        {"structures": [], "triggers": ["a"]},
        {"structures": [{"begin": "x", "schema": {}, "end": ""}], "triggers": ["a"]},
        {"structures": [{"begin": "a", "schema": 5, "end": ""}], "triggers": ["a"]},
        {"structures": [{"begin": 5, "schema": {}, "end": ""}], "triggers": ["a"]},
        {"structures": [{"begin": "a", "schema": {}}] * 300, "triggers": ["a"]},
        {"structures": [{"begin": "a", "schema": {}}], "triggers": [""]},
        {"format": "text"},
        {"format": text(5)},  # type: ignore[arg-type]
        {"format": nested(40)},
        {"format": {"type": "sequence", "elements": [5]}},
        {"format": {"type": "tag", "begin": "a"}},
    ],
)
def test_what_is_malformed_is_refused(tag: Any) -> None:
    with pytest.raises(InvalidRequestError, match="structural_tag"):
        tags_to_lark(tag)


@pytest.mark.parametrize("kind", [None, 5, "qwen_xml_parameter", []])
def test_a_format_that_is_not_known_is_refused_by_name(kind: object) -> None:
    with pytest.raises(UnsupportedOptionError, match="not known"):
        tags_to_lark({"format": {"type": kind}})
