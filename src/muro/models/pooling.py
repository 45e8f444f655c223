"""How a model wants its hidden states to become an embedding: `1_Pooling/config.json` of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from muro.errors import ConfigError

POOLING_FILE = "1_Pooling/config.json"

_MODE = "pooling_mode_"
_MODES: dict[str, Literal["mean", "last"]] = {"mean_tokens": "mean", "lasttoken": "last"}


def read_pooling(directory: Path) -> Literal["mean", "last"] | None:
    """What the model says; None if it says nothing, or wants something else.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = directory / POOLING_FILE
    try:
        raw = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    wanted = [name.removeprefix(_MODE) for name, value in raw.items() if name.startswith(_MODE) and value is True]
    return _MODES.get(wanted[0]) if len(wanted) == 1 else None


def write_pooling(directory: Path, kind: Literal["mean", "last"]) -> None:
    """Let the model say so."""
    file = directory / POOLING_FILE
    file.parent.mkdir(exist_ok=True)
    modes = {f"{_MODE}{name}": value == kind for name, value in _MODES.items()}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(modes), indent=2) + b"\n")
