"""Flags of `muro serve` that say which data-parallel ranks a front-end has, and what they mean.

Internal load balancing: one front-end for all ranks. Hybrid: one per machine, for the ranks there. External: one per
rank; somebody else chooses among them. In the latter two each front-end is the only one of its ranks, which must be
independent of the others.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from muro.cli.ray_options import RayOptions
from muro.config import LockstepConfig
from muro.errors import ConfigError
from muro.transport.endpoint import tcp_endpoint

_MANY = "Engines elsewhere"


class RankOptions(RayOptions, frozen=True, kw_only=True):
    """Named as those of `vllm serve`, save what is lockstep, which vLLM reads off the model, and the balance."""

    data_parallel_size: Annotated[
        int,
        typer.Option("--data-parallel-size", "-dp", min=1, max=65536, help="Engines in all.", rich_help_panel=_MANY),
    ] = 1
    data_parallel_size_local: Annotated[
        int | None,
        typer.Option(
            "--data-parallel-size-local",
            "-dpl",
            min=0,
            help="How many of them are started here (default: all); the others dial in.",
            rich_help_panel=_MANY,
        ),
    ] = None
    data_parallel_balance: Annotated[
        Literal["load", "prefix"],
        typer.Option(
            help="Which engine gets a request: the one with the fewest in flight, or (prefix) the one that has "
            "computed the beginning of its prompt, unless that one has more to do than the others.",
            rich_help_panel=_MANY,
        ),
    ] = "load"
    data_parallel_start_rank: Annotated[
        int,
        typer.Option(
            "--data-parallel-start-rank",
            "-dpr",
            min=0,
            help="With --headless: this engine's rank. With --data-parallel-hybrid-lb: the first one here.",
            rich_help_panel=_MANY,
        ),
    ] = 0
    data_parallel_lockstep: Annotated[
        bool,
        typer.Option(
            "--data-parallel-lockstep",
            help="The engines compute every step together, as those of a mixture-of-experts model with its experts "
            "spread over them do: a coordinator process starts them together, and if one dies all are restarted.",
            rich_help_panel=_MANY,
        ),
    ] = False
    data_parallel_group_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65535,
            help="With --headless and --data-parallel-lockstep: where rank 0, at --data-parallel-address, hears the "
            "other ranks, should the front-end not say so (vLLM's in Rust and SMG do not).",
            rich_help_panel=_MANY,
        ),
    ] = 29600
    data_parallel_hybrid_lb: Annotated[
        bool,
        typer.Option(
            "--data-parallel-hybrid-lb",
            "-dph",
            help="Serve the engines of this machine only: --data-parallel-size-local many of all, from "
            "--data-parallel-start-rank on. Every machine has such a front-end, and a load balancer is before them.",
            rich_help_panel=_MANY,
        ),
    ] = False
    data_parallel_external_lb: Annotated[
        bool,
        typer.Option(
            "--data-parallel-external-lb",
            "-dpe",
            help="Serve one engine only, that of --data-parallel-rank. Every engine has a front-end of its own, and a "
            "load balancer is before them.",
            rich_help_panel=_MANY,
        ),
    ] = False
    data_parallel_rank: Annotated[
        int | None,
        typer.Option(
            "--data-parallel-rank",
            "-dpn",
            min=0,
            help="The rank of this front-end's only engine; means --data-parallel-external-lb.",
            rich_help_panel=_MANY,
        ),
    ] = None


class Ranks(msgspec.Struct, frozen=True):
    """The ranks of one front-end."""

    first: int
    count: int
    local: int
    """How many of them are started here; the others dial in."""
    lockstep: LockstepConfig | None
    others: bool = False
    """Whether other front-ends have the other ranks."""


def ranks_of_front_end(options: RankOptions) -> Ranks:
    """Which ranks a front-end has. Raises ConfigError that names the flags that do not go together."""
    external = options.data_parallel_external_lb or options.data_parallel_rank is not None
    hybrid = options.data_parallel_hybrid_lb
    if hybrid and external:
        raise ConfigError(
            "--data-parallel-hybrid-lb is for a front-end of several engines, --data-parallel-external-lb (and "
            "--data-parallel-rank) for one of a single engine; choose one"
        )
    if (hybrid or external) and options.data_parallel_lockstep:
        raise ConfigError(
            "lockstep engines (--data-parallel-lockstep) have one front-end for all of them; hybrid and external load "
            "balancing is for independent ones"
        )
    return _external(options) if external else _hybrid(options) if hybrid else _internal(options)


def check_headless(options: RankOptions) -> None:
    """Refuse what makes no sense for an engine without a front-end of its own. Raises ConfigError."""
    if options.data_parallel_hybrid_lb or options.data_parallel_external_lb or options.data_parallel_rank is not None:
        raise ConfigError(
            "--headless is an engine of a front-end elsewhere that has all ranks, and --data-parallel-start-rank says "
            "which one; --data-parallel-hybrid-lb, -external-lb and -rank are for front-ends beside their engines"
        )
    rank, size = options.data_parallel_start_rank, options.data_parallel_size
    if rank >= size > 1:  # who does not say how many there are gets 1
        raise ConfigError(
            f"--data-parallel-start-rank is {rank}, and --data-parallel-size {size}: the last rank is {size - 1}"
        )


def group_elsewhere(options: RankOptions, address: str) -> LockstepConfig | None:
    """What an engine without a front-end of its own is told of its lockstep group, should its front-end say nothing."""
    if not options.data_parallel_lockstep:
        return None
    place = tcp_endpoint(address, options.data_parallel_group_port)
    return LockstepConfig(size=options.data_parallel_size, address=place)


def _internal(options: RankOptions) -> Ranks:
    size, local = options.data_parallel_size, options.data_parallel_size_local
    if options.data_parallel_start_rank:
        raise ConfigError(
            "--data-parallel-start-rank goes with --headless or --data-parallel-hybrid-lb; a front-end for all ranks "
            "begins at 0"
        )
    if local is not None and local > size:
        raise ConfigError(
            f"--data-parallel-size-local is {local}, but there are {size} engines in all, as --data-parallel-size says"
        )
    if options.data_parallel_lockstep and local == 0:
        raise ConfigError(
            "rank 0 of lockstep engines (--data-parallel-lockstep) is started here; --data-parallel-size-local is 0"
        )
    lockstep = LockstepConfig() if options.data_parallel_lockstep else None
    return Ranks(0, size, size if local is None else local, lockstep)


def _hybrid(options: RankOptions) -> Ranks:
    first, local, size = options.data_parallel_start_rank, options.data_parallel_size_local, options.data_parallel_size
    if local is None:
        raise ConfigError("--data-parallel-hybrid-lb: --data-parallel-size-local must say how many engines are here")
    if not local or first + local > size:
        raise ConfigError(
            f"--data-parallel-hybrid-lb: {local} engines from rank {first} on (--data-parallel-size-local, "
            f"--data-parallel-start-rank) are not some of {size} (--data-parallel-size)"
        )
    return Ranks(first, local, local, None, others=local < size)


def _external(options: RankOptions) -> Ranks:
    rank, size = options.data_parallel_rank, options.data_parallel_size
    if rank is None:
        raise ConfigError("--data-parallel-external-lb: --data-parallel-rank must say which engine this is")
    if rank >= size:
        raise ConfigError(
            f"--data-parallel-rank is {rank}, and --data-parallel-size {size}: the last rank is {size - 1}"
        )
    if options.data_parallel_size_local not in (None, 1):
        raise ConfigError("--data-parallel-size-local must be 1: with --data-parallel-external-lb there is one engine")
    if options.data_parallel_start_rank not in (0, rank):
        raise ConfigError("--data-parallel-rank says which engine this is; leave out --data-parallel-start-rank")
    return Ranks(rank, 1, 1, None, others=size > 1)
