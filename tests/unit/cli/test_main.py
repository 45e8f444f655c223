"""main.py: which errors end with which exit code."""

from __future__ import annotations

import pytest

from muro.cli.main import exit_code
from muro.errors import ConfigError, EngineDeadError, InvalidRequestError, MissingExtraError, MuroError, StartupError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (MissingExtraError("x", "serve"), 2),
        (StartupError("x", exit_status=-9), 11),
        (StartupError("x", exit_status=2), 2),
        (EngineDeadError("x"), 10),
        (InvalidRequestError("x"), 1),
    ],
)
def test_exit_codes(error: MuroError, code: int) -> None:
    assert exit_code(error) == code
