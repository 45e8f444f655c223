"""docs/load-testing.md: its commands are ones that start."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from muro.cli.options import pairs
from muro.engine.loader import load_engine

PAGE = (Path(__file__).parents[4] / "docs" / "load-testing.md").read_text()
COMMANDS = [line.strip() for line in PAGE.splitlines() if line.startswith("    muro serve")]


def test_there_are_some() -> None:
    assert len(COMMANDS) > 4


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str) -> None:
    words = shlex.split(command)
    assert words[:4] == ["muro", "serve", "--engine", "sim"]
    given: dict[str, list[str]] = {"--engine-option": [], "--fault": []}
    for flag, value in zip(words[4::2], words[5::2], strict=True):
        given[flag].append(value)
    options = pairs(given["--engine-option"]) | {"fault": given["--fault"]}
    engine = load_engine("sim", model=None, options=options, report=lambda phase, percent: None)
    assert len(engine.list_faults()) == len(given["--fault"])  # type: ignore[attr-defined]
    engine.shutdown()
