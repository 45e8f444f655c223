"""call_reader.py: where a call ends, what breaks it, and what is told of it meanwhile. See also test_tool_calls.py."""

from __future__ import annotations

import pytest

from muro.text.call_reader import CallReader, ToolCallPiece


def read(text: str, **options: object) -> tuple[CallReader, str, list[ToolCallPiece]]:
    reader, told = CallReader(3, **options), list[ToolCallPiece]()  # type: ignore[arg-type]
    return reader, reader.feed(text, told.append), told


def test_it_ends_with_its_object() -> None:
    reader, rest, told = read('{"name": "f", "arguments": {"a": "}"}} more')
    assert (reader.done, reader.broken, rest) == (True, False, " more")
    assert told == [ToolCallPiece(3, "f"), ToolCallPiece(3, None, '{"a": "}"}')]
    assert reader.raw == '{"name": "f", "arguments": {"a": "}"}}'


@pytest.mark.parametrize(
    "text",
    ["x", "[", '{"name" "f"}', '{"name": "f" x', '{"a": 1}', '{"name": ""}', "{}", '{"name": 5}', "{]", '{:"a"}', "}"],
)
def test_what_is_no_call_is_broken_and_all_there(text: str) -> None:
    reader, rest, told = read(text)
    if not reader.told:
        assert reader.broken and not told
    assert reader.broken and reader.raw + rest == text


def test_only_what_may_be_called_is_a_call() -> None:
    assert read('{"name": "f"}', names={"g"})[0].broken
    assert read('{"name": "g"}', names={"g"})[0].done


def test_a_name_with_escapes() -> None:
    assert read('{"name": "\\u0066\\"", "arguments": {}}')[2][0].name == 'f"'
