import msgspec
import pytest

from muro.errors import RemoteProtocolError
from muro.wire.lockstep import Ballot, decode_ballot, encode_ballot


@pytest.mark.parametrize(
    "ballot", [Ballot("t", "hello", 3), Ballot("", "vote", 0, 2**40, True), Ballot("t", "leave", 65535)]
)
def test_messages(ballot: Ballot) -> None:
    assert decode_ballot(encode_ballot(ballot)) == ballot


@pytest.mark.parametrize("value", [None, [], ["t", "sing", 1], ["t", "vote", "1"], ["t", "vote", 1, 0, 7]])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError, match="message of a lockstep rank"):
        decode_ballot(msgspec.msgpack.encode(value))


def test_junk_is_refused() -> None:
    for frame in (b"", b"\xc1", b"\x91" * 5000):
        with pytest.raises(RemoteProtocolError):
            decode_ballot(frame)
