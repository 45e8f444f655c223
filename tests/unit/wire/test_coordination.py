import msgspec
import pytest

from muro.errors import RemoteProtocolError
from muro.wire.coordination import (
    FirstRequest,
    Publication,
    ScaleElasticEP,
    decode_notice,
    decode_publication,
    encode,
)


@pytest.mark.parametrize("counts", [None, [], [[0, 2], [3, 4]], [[0, 2, 0.5], [3, 4]]])
def test_publications(counts: list[list[float]] | None) -> None:
    news = Publication(counts, 3, True)
    assert decode_publication(encode(news)) == news


@pytest.mark.parametrize("exclude", [None, 1, b"\x01\x00"])
def test_first_requests_exclude_in_three_ways(exclude: int | bytes | None) -> None:
    notice = FirstRequest(exclude, 7)
    assert decode_notice(encode(notice)) == notice


def test_scaling_is_understood() -> None:
    notice = ScaleElasticEP("SCALE_ELASTIC_EP", 4)
    assert decode_notice(encode(notice)) == notice


@pytest.mark.parametrize("value", [[[[1]], 3, True], [[[1, 2, 3, 4]], 3, True], [None], "x", [[["a", 2]], 3, True]])
def test_other_publications_are_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError, match="publication of the coordinator"):
        decode_publication(msgspec.msgpack.encode(value))


@pytest.mark.parametrize("frame", [b"", b"\x01", b"\xc1", b"\x92\xa1x\x01", b"\x91" * 5000, b"\x92\xc0\xc0"])
def test_other_notices_are_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="notice to the coordinator"):
        decode_notice(frame)
