"""What can be told of a message before it is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muro.errors import RemoteProtocolError
from muro.wire.frames import Frame

MAX_AUX_FRAMES: Final = 4096
"""Far more large arrays than one message has use for."""
MAX_ID_BYTES: Final = 1 << 16
"""Far more than an id needs."""


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
    return _array(memoryview(payload))[0]


def request_heading(payload: Frame) -> tuple[str, int] | None:
    """Request id and number of prompt tokens that an ADD claims to have, whatever its size; None if it is none."""
    rest = memoryview(payload)
    elements, size = _array(rest)
    if elements < 2:
        return None
    rest = rest[size:]
    length, size = _header(rest, 0xA0, 0x1F, {0xD9: 1, 0xDA: 2, 0xDB: 4})
    if not size or len(rest) < size + length or length > MAX_ID_BYTES:
        return None
    try:
        request_id = str(rest[size : size + length], "utf-8")
    except UnicodeDecodeError:
        return None
    return request_id, _array(rest[size + length :])[0]


def _array(data: memoryview) -> tuple[int, int]:
    return _header(data, 0x90, 0x0F, {0xDC: 2, 0xDD: 4})


def _header(data: memoryview, short: int, mask: int, long: Mapping[int, int]) -> tuple[int, int]:
    """Length that a msgpack header claims, and bytes of the header; zeros if it is not of this type."""
    head = data[:5]
    if not len(head):
        return 0, 0
    if head[0] & ~mask == short:
        return head[0] & mask, 1
    width = long.get(head[0], 0)
    return (int.from_bytes(head[1 : 1 + width], "big"), 1 + width) if 0 < width < len(head) else (0, 0)
