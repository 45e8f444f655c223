"""`structured_outputs` of a request (protocol section 8), checked and brought into one of three texts.

Everything that a caller chooses is bounded here, before the library sees it: length, depth, counts of repetitions,
intersections. What a text means is the library's business; whether it compiles is found out in `workshop.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec

from muro.core.grammar.schema import close_objects, measure
from muro.core.grammar.tags import tags_to_lark
from muro.errors import InvalidRequestError
from muro.wire.request import StructuredOutputsParams

MAX_SCHEMA_BYTES = 64 * 1024
MAX_GRAMMAR_BYTES = 16 * 1024
"""Of a regular expression or grammar, and of all patterns of a schema: their time to compile grows with the square."""
MAX_CHOICES = 4096
MAX_REPEATS = 9999
"""The most that `{n,m}` may say: each repetition takes memory."""
MAX_INTERSECTIONS = 8
"""`&` in a grammar: each may double the work."""

PARAM = "structured_outputs"
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_LARGE_REPEAT = re.compile(rf"\{{\s*\d*\s*,?\s*\d{{{len(str(MAX_REPEATS)) + 1},}}")


class GrammarSpec(msgspec.Struct, frozen=True):
    """What the output must be. Equal ones are compiled once.

    `text` is a JSON schema, a regular expression for the whole output, or a grammar: Lark as the library has it, or
    GBNF (with `::=`).
    """

    kind: Literal["json", "regex", "grammar"]
    text: str
    any_whitespace: bool = True
    """For a schema: whether white space may stand between the parts of the output."""
    whitespace_pattern: str | None = None
    """For a schema: which white space, as a regular expression; None: what JSON allows."""


def grammar_spec(params: StructuredOutputsParams) -> GrammarSpec:
    """What a request wants.

    Raises:
        InvalidRequestError: not exactly one form is given, or it is malformed or too large.
    """
    given = [name for name in KINDS if getattr(params, name) not in (None, False)]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InvalidRequestError(
            f"{PARAM}: exactly one of {', '.join(KINDS)} must be given; found {found}", param=PARAM
        )
    kind = given[0]
    if kind in ("json", "json_object"):
        return _schema(params)
    if kind == "regex":
        return GrammarSpec("regex", _bounded(kind, params.regex or ""))
    if kind == "choice":
        return GrammarSpec("grammar", _choices(params.choice or []))
    if kind == "structural_tag":
        text = _decoded(kind, _sized(kind, params.structural_tag or "", MAX_SCHEMA_BYTES))
        return GrammarSpec("grammar", tags_to_lark(text))
    return GrammarSpec("grammar", _bounded(kind, params.grammar or ""))


def _schema(params: StructuredOutputsParams) -> GrammarSpec:
    schema: Any = {"type": "object"} if params.json is None else params.json
    if isinstance(schema, str):
        schema = _decoded("json", _sized("json", schema, MAX_SCHEMA_BYTES))
    schema = {} if schema is True else schema
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"{PARAM}.json must be a JSON schema, an object", param=PARAM)
    patterns = measure(schema)
    _sized("json: its patterns", patterns, MAX_GRAMMAR_BYTES)
    _check_repeats("json", patterns)
    if params.disable_additional_properties:
        schema = close_objects(schema)
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise InvalidRequestError(f"{PARAM}.json: {error}", param=PARAM) from None
    blanks = params.whitespace_pattern
    if blanks is not None:
        _check_repeats("whitespace_pattern", _sized("whitespace_pattern", blanks, 1024))
    return GrammarSpec("json", _sized("json", text, MAX_SCHEMA_BYTES), not params.disable_any_whitespace, blanks)


def _choices(choices: list[str]) -> str:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidRequestError(f"{PARAM}.choice must hold 1 ... {MAX_CHOICES} texts", param=PARAM)
    text = "start: " + " | ".join(map(json.dumps, dict.fromkeys(choices)))
    return _sized("choice", text, MAX_SCHEMA_BYTES)


def _bounded(kind: str, text: str) -> str:
    """A regular expression or a grammar, within all bounds."""
    _sized(kind, text, MAX_GRAMMAR_BYTES)
    _check_repeats(kind, text)
    if kind == "grammar" and text.count("&") > MAX_INTERSECTIONS:
        raise InvalidRequestError(f"{PARAM}.{kind} has more than {MAX_INTERSECTIONS} intersections (&)", param=PARAM)
    return text


def _check_repeats(kind: str, text: str) -> None:
    if _LARGE_REPEAT.search(text):
        raise InvalidRequestError(f"{PARAM}.{kind} repeats something more than {MAX_REPEATS} times", param=PARAM)


def _sized(kind: str, text: str, most: int) -> str:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise InvalidRequestError(f"{PARAM}.{kind} has {size} bytes; it may have {most}", param=PARAM)
    return text


def _decoded(kind: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequestError(f"{PARAM}.{kind} is not JSON: {error}", param=PARAM) from None
