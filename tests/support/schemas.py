"""Object schemas of a public suite, each with a question and an answer that is valid; see `tests/data/schemas`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

_FILE = Path(__file__).parent.parent / "data/schemas/bfcl_simple_python.jsonl"


class Example(msgspec.Struct, frozen=True):
    """A question, the function that answers it, and a call that does."""

    id: str
    name: str
    question: str
    schema: dict[str, Any]
    answer: dict[str, Any]


@cache
def examples() -> list[Example]:
    """All of them; no two have the same schema."""
    return [msgspec.json.decode(line, type=Example) for line in _FILE.read_bytes().splitlines()]
