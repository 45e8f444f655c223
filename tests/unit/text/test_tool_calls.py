"""tool_calls.py: calls in a text, found however it is cut; and what only looks like one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muro.text.call_reader import ToolCallPiece
from muro.text.tool_calls import PARSERS, ArgumentsParser, ToolParser, form_of, list_parser

Calls = list[tuple[str, str]]


def read(form: str, parts: Sequence[str]) -> tuple[str, Calls]:
    """Content, and each call's name and arguments."""
    parser = PARSERS[form]({"weather", "time"})
    content, calls = "", []
    for piece in [piece for part in parts for piece in parser.feed(part)] + parser.finish():
        if not isinstance(piece, ToolCallPiece):
            assert piece
            content += piece
        elif piece.name is not None:
            assert piece.index == len(calls) and not piece.arguments
            calls.append((piece.name, ""))
        else:
            assert piece.index == len(calls) - 1 and piece.arguments
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
    return content, calls


WEATHER = '{"name": "weather", "arguments": {"city": "Par{is\\"}", "days": [1, {"a": null}]}}'
ARGUMENTS = '{"city": "Par{is\\"}", "days": [1, {"a": null}]}'
HERMES: list[tuple[str, str, Calls]] = [
    ("no call at all", "no call at all", []),
    (" spaces stay \n", " spaces stay \n", []),
    (f"<tool_call>\n{WEATHER}\n</tool_call>", "", [("weather", ARGUMENTS)]),
    (f"One moment.\n<tool_call>{WEATHER}</tool_call>\n done", "One moment.done", [("weather", ARGUMENTS)]),
    (
        f'<tool_call>{WEATHER}</tool_call>\n<tool_call>\n{{"name":"x"}}</tool_call>\n',
        "",
        [("weather", ARGUMENTS), ("x", "{}")],
    ),
    ('<tool_call>{"arguments": {"a": 1 } , "id": [3], "name": "time"}</tool_call>', "", [("time", '{"a": 1 }')]),
    ('<tool_call>{"name": "time", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("time", '{"a": 1}')]),
    ('<tool_call>{"name": "time", "arguments": null}</tool_call>', "", [("time", "{}")]),
    (
        '<tool_call>{"name": "time", "arguments": {"a": "</tool_call>"}}</tool_call>',
        "",
        [("time", '{"a": "</tool_call>"}')],
    ),
    ("<tool_call>nothing</tool_call> x", "<tool_call>nothing</tool_call> x", []),
    ('a <tool_call>{"name": 5}</tool_call>', 'a <tool_call>{"name": 5}</tool_call>', []),
    ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    ('<tool_call>{"name": "time", "arguments": {"a": <b></tool_call> c', "c", [("time", '{"a": ')]),
    ('<tool_call>{"name": "time", "arguments": {"a": 1', "", [("time", '{"a": 1')]),
    ('<tool_call>{"na', '<tool_call>{"na', []),
    ("a <tool", "a <tool", []),
]
LLAMA: list[tuple[str, str, Calls]] = [
    ("Hello {", "Hello {", []),
    ('{"name": "weather", "parameters": {"a": 1}}', "", [("weather", '{"a": 1}')]),
    ('\n<|python_tag|>{"name": "time", "parameters": {}}', "", [("time", "{}")]),
    (
        '{"type": "function", "name": "time", "parameters": {"a": 1}}; {"name": "time"}',
        "",
        [("time", '{"a": 1}'), ("time", "{}")],
    ),
    ('{"name": "time", "parameters": {}}\nThere.', "There.", [("time", "{}")]),
    ('{"name": "Paris", "size": 3}', '{"name": "Paris", "size": 3}', []),
    ('{"a": 1', '{"a": 1', []),
    ("<|python", "<|python", []),
    ("[1]", "[1]", []),
]
CASES = [("hermes", *case) for case in HERMES] + [("llama3_json", *case) for case in LLAMA]
every = pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)


@every
def test_whole(form: str, text: str, content: str, calls: Calls) -> None:
    assert read(form, [text]) == (content, calls)


@every
def test_character_by_character(form: str, text: str, content: str, calls: Calls) -> None:
    assert read(form, list(text)) == (content, calls)


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "time", "arguments": ',
        '{"a": "b"}',
        "}",
        "{",
        '"',
        "\\",
        " ",
        "\n",
        "x",
        ";",
        ":",
        ",",
        "[",
        "]",
        "1",
    ]
)


@example(form="llama3_json", fragments=['{"name": "time", "arguments": ', ";", "<tool_call>"], cuts=[])
@given(st.sampled_from(sorted(PARSERS)), st.lists(FRAGMENTS, max_size=12), st.lists(st.integers(0, 60), max_size=6))
def test_no_text_depends_on_how_it_is_cut(form: str, fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert read(form, parts) == read(form, [text]) == read(form, list(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=3), st.booleans())
def test_any_arguments_arrive(arguments: dict[str, Any], ascii_only: bool) -> None:
    call = json.dumps({"name": "time", "arguments": arguments}, ensure_ascii=ascii_only)
    _, calls = read("hermes", [f"<tool_call>\n{call}\n</tool_call>"])
    assert [(name, json.loads(text)) for name, text in calls] == [("time", arguments)]


@pytest.mark.parametrize("cut", [1, 100])
def test_answers_that_were_held_to_calls(cut: int) -> None:
    def pieces(parser: ToolParser, text: str) -> list[Any]:
        parts = [text[i : i + cut] for i in range(0, len(text), cut)]
        return [piece for part in parts for piece in parser.feed(part)] + parser.finish()

    def joined(found: list[Any]) -> list[tuple[int, str | None, str]]:
        return [
            (
                index,
                next(p.name for p in found if p.index == index),
                "".join(p.arguments for p in found if p.index == index),
            )
            for index in sorted({p.index for p in found})
        ]

    listed = '[{"name": "time", "parameters": {"a": [1]}}, {"name": "weather", "parameters": {}}]'
    assert joined(pieces(list_parser({"time", "weather"}), listed)) == [(0, "time", '{"a": [1]}'), (1, "weather", "{}")]
    assert joined(pieces(ArgumentsParser("time"), '{"a": 1}')) == [(0, "time", '{"a": 1}')]
    assert ArgumentsParser("time").finish() == [ToolCallPiece(0, "time")]


def test_a_call_is_told_of_while_it_is_written() -> None:
    parser = PARSERS["hermes"](())
    assert parser.feed('<tool_call>{"name": "time",') == [ToolCallPiece(0, "time")]
    assert parser.feed(' "arguments": {"a"') == [ToolCallPiece(0, None, '{"a"')]
    assert parser.feed(": 1}") == [ToolCallPiece(0, None, ": 1}")]
    assert parser.feed("}") == []


def test_the_form_is_found_in_a_template() -> None:
    assert form_of("... return <tool_call>\n ...") == "hermes"
    assert form_of('Respond in the format {"name": function name, "parameters": dictionary}') == "llama3_json"
    assert form_of("<tool_call>\n<function=name>") is form_of("{{ messages }}") is None
