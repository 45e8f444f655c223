"""Faults from a file: TOML (`.toml`) or JSON, a table for each fault.

[[fault]]
do = "step:sleep=0.5"   # [place:]kind[=argument]
step = 100              # conditions, as in `schedule.py`
times = 20
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from muro.engines.faults import Fault
from muro.engines.sim.schedule import NO_CONDITION, When, parse_scheduled, parse_when
from muro.errors import ConfigError

_UNREADABLE = (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError, msgspec.MsgspecError, ConfigError)


class _Scenario(msgspec.Struct, forbid_unknown_fields=True):
    fault: list[dict[str, Any]] = []


def read_scenario(path: str) -> list[tuple[Fault, When]]:
    """The faults of a file. Raises ConfigError that names the file and what is wrong in it."""
    file = Path(path)
    try:
        content = file.read_bytes()
        raw = tomllib.loads(content.decode()) if file.suffix == ".toml" else msgspec.json.decode(content)
        scenario = msgspec.convert(raw, _Scenario)
        return [_read(dict(entry)) for entry in scenario.fault]
    except _UNREADABLE as error:
        raise ConfigError(f"scenario {path}: {error}") from None


def _read(entry: dict[str, Any]) -> tuple[Fault, When]:
    do = entry.pop("do", None)
    if not isinstance(do, str):
        raise ConfigError('every [[fault]] says what to do, as in do = "step:hang"')
    fault, inline = parse_scheduled(do)
    if entry and inline != NO_CONDITION:
        raise ConfigError(f"fault {do!r}: conditions stand either behind @ or in entries of their own")
    return fault, parse_when(fault, entry) if entry else inline
