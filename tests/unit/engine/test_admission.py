"""Admission: two limits, counted on two sides."""

import pytest

from muro.config import Limits
from muro.engine.admission import Admission
from muro.errors import OverloadedError


def test_the_limit_of_requests_is_reached_and_left() -> None:
    admission = Admission(Limits(max_requests=2))
    for _ in range(2):
        admission.check(10)
        admission.admit(10)
    with pytest.raises(OverloadedError, match="max_requests"):
        admission.check(10)
    admission.taken(10)
    with pytest.raises(OverloadedError):
        admission.check(10)  # taken by the loop, but not finished
    admission.finished()
    admission.check(10)
    assert admission.requests == 1


def test_the_limit_of_bytes_is_about_what_waits() -> None:
    admission = Admission(Limits(max_request_bytes=100))
    admission.check(100)
    admission.admit(100)
    with pytest.raises(OverloadedError, match="max_request_bytes"):
        admission.check(1)
    admission.taken(100)
    admission.check(100)
    with pytest.raises(OverloadedError):
        admission.check(101)


def test_a_check_counts_nothing() -> None:
    admission = Admission(Limits(max_requests=1))
    for _ in range(3):
        admission.check(1)
    assert admission.requests == 0
