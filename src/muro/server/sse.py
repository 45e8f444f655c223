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
_MARK = "\ue0c7"
"""A private-use character: model names and request ids, all else that callers have a say in, never hold it."""


def event(data: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encode(data)


class TextEvents:
    """Events of one choice that differ in their text alone: all else is encoded once.

    Args:
        chunk: makes the chunk for a text; called once, at once.
    """

    def __init__(self, chunk: Callable[[str], msgspec.Struct]) -> None:
        self._before, _, self._after = event(chunk(_MARK)).partition(_encode(_MARK))

    def __call__(self, text: str) -> bytes:
        """The event that carries `text`."""
        return self._before + _encode(text) + self._after
