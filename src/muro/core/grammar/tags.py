"""`structural_tag`: free text in which, after certain words, something with a structure must follow.

Two forms are known, as front-ends send them: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and
`{"format": ...}` with the formats of the table below. Both become a grammar in Lark as the library has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from muro.core.grammar.schema import measure
from muro.errors import InvalidRequestError, UnsupportedOptionError

MAX_TAGS = 256
MAX_DEPTH = 16

_PARAM = "structured_outputs"
_TEXT = r"/(.|\n)*/"


def tags_to_lark(tag: Any) -> str:
    """The grammar. Raises InvalidRequestError, and UnsupportedOptionError for a format that is not known here."""
    if not isinstance(tag, dict):
        raise _wrong("an object")
    rules = _Rules()
    if "format" in tag:
        body = rules.of(tag["format"], 0)
    else:
        structures = [
            {"begin": part.get("begin"), "content": {"type": "json_schema", "json_schema": part.get("schema", {})},
             "end": part.get("end", "")}
            for part in _list(tag, "structures", dict)
        ]  # fmt: skip
        body = rules.of({"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": structures}, 0)
    return "\n".join([f"start: {body}", *rules.lines])


class _Rules:
    """Collects rules; each method gives what stands for a format within another rule."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._formats: Mapping[str, Callable[[dict[str, Any], int], str]] = {
            "const_string": lambda f, _: json.dumps(_str(f, "value")),
            "json_schema": lambda f, _: _schema(f.get("json_schema")),
            "any_text": lambda _f, _d: self._rule(_TEXT),
            "sequence": lambda f, d: self._rule(" ".join(self.of(e, d) for e in _list(f, "elements", dict))),
            "or": lambda f, d: self._rule(" | ".join(self.of(e, d) for e in _list(f, "elements", dict))),
            "tag": self._tag,
            "triggered_tags": self._triggered,
        }

    def of(self, part: Any, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"{_PARAM}.structural_tag is nested more than {MAX_DEPTH} deep", param=_PARAM)
        if not isinstance(part, dict):
            raise _wrong("made of objects")
        kind = part.get("type")
        make = self._formats.get(kind) if isinstance(kind, str) else None
        if make is None:
            what = f"{_PARAM}.structural_tag: the format {str(kind)[:100]!r} is not known; known are "
            raise UnsupportedOptionError(what + ", ".join(self._formats), param=_PARAM)
        if len(self.lines) > 16 * MAX_TAGS:
            raise InvalidRequestError(f"{_PARAM}.structural_tag has too many parts", param=_PARAM)
        return make(part, depth + 1)

    def _tag(self, part: dict[str, Any], depth: int) -> str:
        begin, end = _str(part, "begin"), _str(part, "end")
        content = part.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            # The text reaches to the first end, which is a part of its lexeme.
            return self._rule(f"{json.dumps(begin)} {self._lazy(end)}")
        return self._rule(f"{json.dumps(begin)} {self.of(content, depth)} {json.dumps(end)}")

    def _triggered(self, part: dict[str, Any], depth: int) -> str:
        triggers, tags = _list(part, "triggers", str), _list(part, "tags", dict)
        if not 1 <= len(tags) <= MAX_TAGS:
            raise _wrong(f"with 1 ... {MAX_TAGS} tags")
        branches: dict[str, list[str]] = {}
        for tag in tags:
            begin, end = _str(tag, "begin"), _str(tag, "end")
            trigger = next((t for t in triggers if t and begin.startswith(t)), None)
            if trigger is None:
                raise _wrong(f"such that the tag {begin[:100]!r} begins with one of its triggers")
            rest = [json.dumps(begin[len(trigger) :]), self.of(tag.get("content"), depth), json.dumps(end)]
            branches.setdefault(trigger, []).append(" ".join(rest))
        heads = [f"{self._lazy(t)} ({' | '.join(alternatives)})" for t, alternatives in branches.items()]
        text = self._rule(_TEXT)
        if part.get("at_least_one"):
            one = self._rule(" | ".join(heads))
            return self._rule(one if part.get("stop_after_first") else f"{one}+ {text}")
        repeated = self._rule(" | ".join(heads))
        return self._rule(f"({repeated})? {text}" if part.get("stop_after_first") else f"({repeated})* {text}")

    def _rule(self, body: str) -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _lazy(self, end: str) -> str:
        """Text up to the first occurrence of `end`, that included."""
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}[lazy]: {_TEXT} {json.dumps(end)}")
        return name


def _schema(schema: Any) -> str:
    if not isinstance(schema, dict | bool):
        raise _wrong("with a JSON schema in each json_schema")
    measure(schema)
    return "%json " + json.dumps(schema)


def _str(part: dict[str, Any], name: str) -> str:
    value = part.get(name, "" if name == "end" else None)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise _wrong(f"with a text as {name}")
    return value


def _list(part: dict[str, Any], name: str, kind: type) -> list[Any]:
    value = part.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, kind) for item in value):
        raise _wrong(f"with a list as {name}")
    return value


def _wrong(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{_PARAM}.structural_tag must be {what}", param=_PARAM)
