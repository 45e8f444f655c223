"""How a model wants to be sampled: the recommendations in its `generation_config.json` (Hugging Face's format).

They hold where a caller says nothing, as in vLLM's server. Keys that are not read here have no effect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from muro.errors import ConfigError


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Values for a request that gives none. `temperature` 0 is greedy; `top_k` 0 is off."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = 0
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


def read_sampling_defaults(directory: Path | None) -> SamplingDefaults:
    """What the model recommends; the neutral values without a directory or without the file.

    Raises:
        ConfigError: the file holds something else.
    """
    if directory is None:
        return SamplingDefaults()
    file = directory / "generation_config.json"
    try:
        raw = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
        given = {name: msgspec.json.decode(value) for name, value in raw.items()}
        return msgspec.convert({name: value for name, value in given.items() if value is not None}, SamplingDefaults)
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be used: {error}") from error
