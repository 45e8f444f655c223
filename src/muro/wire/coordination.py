"""What passes between front-ends and the data-parallel coordinator besides outputs (protocol section 15.3).

Engines talk to the coordinator in `EngineCoreOutputs` and get START_DP_WAVE; both are the codec's. The rules
of waves and balance are not here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muro.errors import RemoteProtocolError
from muro.wire.frames import Frame

SCALE_ELASTIC_EP: Final = "SCALE_ELASTIC_EP"

MAX_WAVE: Final = 1 << 60
"""Waves are counted up to here; the next one must fit into a message, too."""

Count = tuple[int, int] | tuple[int, int, float]
"""(waiting, running) of one rank, from 0.27 on with its KV cache usage, 0 ... 1."""


class Publication(msgspec.Struct, array_like=True):
    """Coordinator -> front-ends: the load of all ranks (None: unchanged), the wave, and whether it runs."""

    counts: list[list[int | float]] | None
    wave: int
    running: bool


class FirstRequest(msgspec.Struct, array_like=True):
    """Front-end -> coordinator (up to 0.32): a request arrived while the engines were believed to pause.

    `exclude` is the engine that has it: a rank, or its identity bytes, or None.
    """

    exclude: int | bytes | None
    wave: int


class ScaleElasticEP(msgspec.Struct, array_like=True):
    """Front-end -> coordinator: the new number of engines. Not served here; known so that it can be refused."""

    kind: str
    count: int


_encoder = msgspec.msgpack.Encoder()
_publication = msgspec.msgpack.Decoder(Publication)
_first_request = msgspec.msgpack.Decoder(FirstRequest)
_scale = msgspec.msgpack.Decoder(ScaleElasticEP)


def encode(message: Publication | FirstRequest | ScaleElasticEP) -> bytes:
    """The single frame of a message."""
    return _encoder.encode(message)


def decode_publication(frame: Frame) -> Publication:
    """News of the coordinator. Raises RemoteProtocolError."""
    try:
        news = _publication.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"publication of the coordinator: {error}") from error
    if not 0 <= news.wave <= MAX_WAVE:
        raise RemoteProtocolError(f"publication of the coordinator: there is no wave {news.wave}")
    for count in news.counts or ():
        if not 2 <= len(count) <= 3:
            raise RemoteProtocolError(f"publication of the coordinator: {len(count)} numbers for a rank, not 2 or 3")
        if not all(type(number) is int and number >= 0 for number in count[:2]):
            raise RemoteProtocolError("publication of the coordinator: requests of a rank that are no number of them")
    return news


def decode_notice(frame: Frame) -> FirstRequest | ScaleElasticEP:
    """Message of a front-end to the coordinator. Raises RemoteProtocolError."""
    try:
        return _first_request.decode(frame)
    except (msgspec.DecodeError, RecursionError) as first:
        try:
            notice = _scale.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            raise RemoteProtocolError(f"notice to the coordinator: {first}") from first
    if notice.kind != SCALE_ELASTIC_EP:
        raise RemoteProtocolError(f"notice to the coordinator: unknown kind {notice.kind[:40]!r}")
    return notice
