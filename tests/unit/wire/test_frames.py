import pytest

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire.frames import identity_of, rank_of


@pytest.mark.parametrize(
    ("rank", "identity"), [(0, b"\x00\x00"), (1, b"\x01\x00"), (258, b"\x02\x01"), (65535, b"\xff\xff")]
)
def test_an_identity_is_the_rank_in_two_bytes_little_endian(rank: int, identity: bytes) -> None:
    assert identity_of(rank) == identity
    assert rank_of(identity) == rank
    assert rank_of(memoryview(identity)) == rank


@pytest.mark.parametrize("rank", [-1, 65536])
def test_a_rank_out_of_range_has_no_identity(rank: int) -> None:
    with pytest.raises(LocalProtocolError, match="must lie in 0"):
        identity_of(rank)


@pytest.mark.parametrize("identity", [b"", b"\x00", b"\x00\x00\x00", b"\x00" * 5])
def test_other_identities_are_nobody(identity: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="engine identity of"):
        rank_of(identity)
