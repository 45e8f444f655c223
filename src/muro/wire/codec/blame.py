"""Naming the place in a message that could not be written or read, in the message's own words."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from muro.errors import LocalProtocolError
from muro.wire.arrays import Outgoing
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs

MAX_DEPTH: Final = 64

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
"""What a decoder raises for bytes that it cannot read."""
UNWRITABLE: Final = (AttributeError, TypeError, ValueError, OverflowError, RecursionError, LocalProtocolError)
"""What an encoder raises for values that it cannot write."""


def blame(message: object, error: BaseException) -> str:
    """What could not be encoded in a message, and why: "sampling_params.seed: can't serialize ints ...".

    Looks for the innermost part that cannot be encoded alone; slow, for the way out only.
    """
    path, cause = _culprit(message, error, "", MAX_DEPTH)
    text = cause.message if isinstance(cause, LocalProtocolError) else str(cause)
    if isinstance(cause, RecursionError):
        text = "nested too deeply, or in a circle"
    return f"{path.lstrip('.')}: {text}" if path else text


def spell(text: str, root: type[msgspec.Struct]) -> str:
    """A decoder's words with the positions of array structs replaced by the names of their fields."""
    text = re.sub(r"\$\[(\d+)\]", lambda found: _field(root, int(found[1])), text)
    if root is EngineCoreOutputs:
        text = re.sub(
            r"(outputs\[[\d.]+\])\[(\d+)\]", lambda found: f"{found[1]}.{_field(EngineCoreOutput, int(found[2]))}", text
        )
    return text


def _field(struct: type[msgspec.Struct], position: int) -> str:
    names = struct.__struct_fields__
    return names[position] if position < len(names) else f"[{position}]"


def _culprit(value: object, error: BaseException, path: str, depth: int) -> tuple[str, BaseException]:
    if depth:
        for step, part in _parts(value):
            if (fault := _fault(part)) is not None:
                return _culprit(part, fault, path + step, depth - 1)
    return path, error


def _parts(value: object) -> list[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return [(f"[{str(key)[:40]!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    return []


def _fault(value: object) -> BaseException | None:
    try:
        msgspec.msgpack.encode(value, enc_hook=Outgoing().hook)
    except Exception as error:
        return error
    return None
