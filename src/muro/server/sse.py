"""Server-sent events (WHATWG HTML, section 9.2) as OpenAI's API uses them: `data: JSON`, and `[DONE]` at the end.

One bytes object per event. JSON escapes line breaks, so an event's data is always one line.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

DONE = b"data: [DONE]\n\n"
"""The last event of every stream, also of one that failed."""

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
"""For the response: an event stream that no cache or proxy on the way may hold back."""

_encode = msgspec.json.Encoder().encode


def event(data: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encode(data)


class TextEvents:
    """Events of one choice that differ in their text alone: all else is encoded once.

    Args:
        chunk: makes the chunk for a text; called twice, at once.
    """

    def __init__(self, chunk: Callable[[str], msgspec.Struct]) -> None:
        empty, longer = event(chunk("")), event(chunk("x"))
        # They differ first where `empty` closes the string that `longer` fills.
        at = next(i for i, (a, b) in enumerate(zip(empty, longer, strict=False)) if a != b)
        self._before, self._after = empty[: at - 1], empty[at + 1 :]

    def __call__(self, text: str) -> bytes:
        """The event that carries `text`."""
        return self._before + _encode(text) + self._after
