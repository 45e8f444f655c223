"""What can be told of a message before it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from muro.errors import RemoteProtocolError
from muro.wire.frames import Frame

MAX_AUX_FRAMES: Final = 4096
"""Far more large arrays than one message has use for."""


def check_aux(count: int) -> None:
    """Raises RemoteProtocolError for more auxiliary frames than a message may have."""
    if count > MAX_AUX_FRAMES:
        raise RemoteProtocolError(f"message with {count} auxiliary frames; the limit is {MAX_AUX_FRAMES}")


def payload_alone(frames: Sequence[Frame], what: str) -> Frame:
    """The payload of a request without auxiliary frames. Raises RemoteProtocolError."""
    if len(frames) != 2:
        raise RemoteProtocolError(f"{what} of {len(frames)} frames; it must have 2")
    return frames[1]


def array_length(payload: Frame | msgspec.Raw) -> int:
    """The number of elements that a msgpack array's header claims; 0 if it is no array."""
    head = memoryview(payload)[:5]
    if not len(head):
        return 0
    if 0x90 <= head[0] <= 0x9F:
        return head[0] & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(head[0], 0)
    return int.from_bytes(head[1 : 1 + width], "big") if len(head) > width else 0
