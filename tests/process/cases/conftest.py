"""Failure cases: besides leaving nothing behind, none of them may write a line at error level here."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not errors
