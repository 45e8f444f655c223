"""One tool call as a JSON object with a name and arguments, read character by character while a model writes it.

No parser of whole documents can do this: the name must be known, and arguments handed on, before the object ends. What
is checked is as much of JSON as decides whether it is a call at all, and where it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

import msgspec

_NAMES, _ARGUMENTS = "name", ("arguments", "parameters")
SPACE = " \n\t\r"
_OUTSIDE_STRINGS = frozenset('{}[],:"+-.0123456789eEtrufalsn' + SPACE)


class ToolCallPiece(msgspec.Struct):
    """News of a call: with the first piece comes its name, afterwards more of its arguments, which are JSON."""

    index: int
    name: str | None = None
    arguments: str = ""


class CallReader:
    """Reads one call.

    Args:
        index: of the call in its answer.
        names: what may be called; None: anything.
    """

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        self.raw = ""
        """All that was read of it."""
        self.told = False
        """Whether its name is out; then it is a call for good."""
        self.done = False
        self.broken = False
        self._index = index
        self._names = names
        self._name: str | None = None
        self._key: str | None = None
        self._value: list[str] | None = None  # of the member that is being read
        self._arguments = ""  # read, but not told yet
        self._any_arguments = False
        self._depth = 0
        self._string = self._escape = False
        self._part: list[str] = []  # of a key

    def feed(self, text: str, tell: Callable[[ToolCallPiece], None]) -> str:
        """Read as far as the object goes; gives what stands behind it, or what has broken it."""
        used = 0
        for used, char in enumerate(text, 1):
            if not self._take(char):
                self.broken = True
                used -= 1
                break
            if self._name is not None and not self.told:  # at once: what comes next may break it
                self.told = True
                tell(ToolCallPiece(self._index, self._name))
            if self.done:
                break
        self.raw += text[:used]
        if self.done and not self.told:
            self.broken, self.done = True, False
        if self.done and not self._any_arguments:
            self._arguments = "{}"
        if self.told and self._arguments:
            tell(ToolCallPiece(self._index, None, self._arguments))
            self._arguments = ""
        return text[used:]

    def _take(self, char: str) -> bool:
        """The next character; whether it can belong to a call."""
        if self._string:
            self._in_string(char)
            return True
        if char not in _OUTSIDE_STRINGS:
            return False
        if char == '"':
            self._string = True
            return self._begin_string()
        if char in SPACE:
            return self._in_value(char)
        if char in "{[":
            self._depth += 1
            return (char == "{") if self._depth == 1 else self._in_value(char)
        if char in "}]":
            return self._close(char)
        if self._depth == 1 and char in ",:":
            return self._separate(char)
        return self._depth > 0 and self._in_value(char)

    def _begin_string(self) -> bool:
        if self._value is not None:
            return self._in_value('"')
        if self._depth != 1 or self._key is not None:
            return False
        self._part = ['"']
        return True

    def _in_string(self, char: str) -> None:
        if self._escape:
            self._escape = False
        elif char == "\\":
            self._escape = True
        elif char == '"':
            self._string = False
        if self._value is not None:
            self._in_value(char)
            return
        self._part.append(char)
        if not self._string:
            self._key = str(_value_of("".join(self._part)))

    def _in_value(self, char: str) -> bool:
        """A character of a member's value, or white space anywhere."""
        if self._value is None:
            return char in SPACE
        if not self._value and char in SPACE:
            return True
        self._value.append(char)
        if self._key in _ARGUMENTS and self._value[0] == "{":
            self._any_arguments = True
            if self._depth > 1 or char not in SPACE:
                self._arguments += char
        return True

    def _close(self, char: str) -> bool:
        self._depth -= 1
        if self._depth > 0:
            return self._in_value(char)
        if self._depth < 0 or char == "]":
            return False
        self.done = True
        return self._value is None or self._end_value()

    def _separate(self, char: str) -> bool:
        if char == ":":
            if self._key is None or self._value is not None:
                return False
            self._value = []
            return True
        return self._value is not None and self._end_value()

    def _end_value(self) -> bool:
        key, text = self._key, "".join(self._value or ()).strip()
        self._key = self._value = None
        if key == _NAMES and self._name is None:
            name = _value_of(text)
            if not isinstance(name, str) or not name or (self._names is not None and name not in self._names):
                return False
            self._name = name
        elif key in _ARGUMENTS and not text.startswith("{"):
            value = _value_of(text)
            self._any_arguments = True
            self._arguments += value if isinstance(value, str) else "{}" if value is None else text
        return True


def _value_of(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
