"""Frames that are not msgpack: type bytes, engine identities, and the marker messages (protocol sections 1, 6, 14, 15).

Knows the order of frames within a message, not how they travel.
"""

from __future__ import annotations

from typing import Final

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.ids import EngineRank

Frame = bytes | bytearray | memoryview
"""One part of a ZeroMQ message."""

ENGINE_CORE_DEAD: Final = b"ENGINE_CORE_DEAD"
"""The only message on an output socket that is not msgpack: the engine has failed and is about to exit."""

SUBSCRIBE: Final = b"\x01"
"""Subscription to everything, as an XSUB socket sends it to the coordinator's XPUB sockets."""

UNSUBSCRIBE: Final = b"\x00"
"""The end of it, which a socket makes up itself when a connection ends."""

COORDINATOR_READY: Final = b"READY"
"""From the coordinator to its engines, once all have subscribed; may be repeated."""

MAX_RANK: Final = 65535


class RequestType:
    """First frame of a message from a front-end to an engine: exactly one byte."""

    ADD: Final = b"\x00"
    ABORT: Final = b"\x01"
    START_DP_WAVE: Final = b"\x02"
    UTILITY: Final = b"\x03"


def identity_of(rank: int) -> bytes:
    """The routing id of the engine with this data-parallel rank: two bytes, little endian."""
    if not 0 <= rank <= MAX_RANK:
        raise LocalProtocolError(f"engine rank {rank} does not fit an identity; it must lie in 0 ... {MAX_RANK}")
    return rank.to_bytes(2, "little")


def rank_of(identity: Frame) -> EngineRank:
    """The rank that a routing id stands for. Raises RemoteProtocolError for anything but two bytes."""
    if len(identity) != 2:
        raise RemoteProtocolError(f"engine identity of {len(identity)} bytes; it must be the rank in 2, little endian")
    return EngineRank(int.from_bytes(identity, "little"))
