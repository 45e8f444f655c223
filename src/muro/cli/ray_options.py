"""The flags of `muro serve` that concern engines on a Ray cluster."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from muro.cli.http_options import HttpOptions
from muro.config import RayConfig
from muro.errors import ConfigError

_MANY = "Engines elsewhere"


class RayOptions(HttpOptions, frozen=True, kw_only=True):
    """Who starts the engines, and where."""

    data_parallel_backend: Annotated[
        Literal["mp", "ray"],
        typer.Option(
            "--data-parallel-backend",
            "-dpb",
            help="Who starts the engines. mp: this process, here. ray: Ray, on the nodes of the cluster that "
            "RAY_ADDRESS names or that this machine belongs to, else on one that is started here; each is an actor.",
            rich_help_panel=_MANY,
        ),
    ] = "mp"
    ray_resources: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='With ray: what each engine asks for, as in \'{"CPU": 4, "GPU": 1}\'. Default: one CPU.',
            rich_help_panel=_MANY,
        ),
    ] = None


def ray_config(options: RayOptions) -> RayConfig | None:
    """What the flags say of Ray; None if it is not to be used. Raises ConfigError."""
    if options.data_parallel_backend != "ray":
        if options.ray_resources is not None:
            raise ConfigError("--ray-resources goes with --data-parallel-backend ray")
        return None
    if options.ray_resources is None:
        return RayConfig()
    try:
        return RayConfig(resources=msgspec.json.decode(options.ray_resources, type=dict[str, float]))
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--ray-resources {options.ray_resources!r} is no map of amounts ({error}); "
            '\'{"CPU": 4, "GPU": 1}\' works'
        ) from None
