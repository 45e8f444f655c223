"""What lockstep ranks say to each other: one frame per message, between engines of ours only.

Rank 0 listens, the others dial with their identity. Each vote goes to rank 0, which passes it on to all others, so
every rank knows who has voted. Who sends what when is not here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from muro.errors import RemoteProtocolError
from muro.wire.frames import Frame


class Ballot(msgspec.Struct, array_like=True, frozen=True):
    """A message of a rank, or one of it that is passed on.

    "hello": tell me all votes that I may have missed. "vote": `value` in round `number`. "leave": this rank ends.
    """

    token: str
    kind: Literal["hello", "vote", "leave"]
    rank: int
    number: int = 0
    value: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Ballot)


def encode_ballot(ballot: Ballot) -> bytes:
    """The frame of a message."""
    return _encoder.encode(ballot)


def decode_ballot(frame: Frame) -> Ballot:
    """The message in a frame. Raises RemoteProtocolError."""
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"message of a lockstep rank: {error}") from error
