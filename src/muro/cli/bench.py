"""`muro bench`: the wall, a server, its profile, the bare model, the scheduler, several ranks."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import msgspec
import typer

from muro.cli.help import Command
from muro.cli.options import flags, pairs

HELP = """Measure: the wall itself, any OpenAI-compatible server, the bare model, the scheduler, several ranks.

\b
Examples:
    muro bench wall
    muro bench serve http://127.0.0.1:8000 --concurrency 16 --max-tokens 64
    muro bench profile http://127.0.0.1:8000 > mine.toml
    muro bench restart
    muro bench executor "$(muro pull demo)"
    muro bench scheduler
    muro bench ranks
"""


class WallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro bench wall`."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    quick: Annotated[bool, typer.Option("--quick", help="Only see that everything runs.")] = False


class ServerLoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro bench serve`."""

    url: Annotated[str, typer.Argument(help="Address of the server.")] = "http://127.0.0.1:8000"
    model: Annotated[str, typer.Option(help="Name of the model; default: not sent.")] = ""
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="Requests in all.")] = 256
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Requests at once.")] = 256
    prompt_words: Annotated[int, typer.Option(min=1, help="Words of a prompt; about as many tokens.")] = 32
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 128
    stream: Annotated[bool, typer.Option(help="Streamed answers or whole ones.")] = True
    route: Annotated[Literal["completions", "chat"], typer.Option(help="Which route to call.")] = "completions"
    pid: Annotated[list[int] | None, typer.Option(help="Report CPU and memory of a process; may be repeated.")] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


class ProfileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro bench profile`."""

    url: Annotated[str, typer.Argument(help="Address of the server.")] = "http://127.0.0.1:8000"
    model: Annotated[str, typer.Option(help="Name of the model; default: the first that the server has.")] = ""
    route: Annotated[Literal["completions", "chat"], typer.Option(help="Which route to call.")] = "completions"
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=2, help="The most streams at once.")] = 16
    prompt_words: Annotated[int, typer.Option(min=64, help="Words of the longest prompt.")] = 512
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each stream.")] = 64
    repeats: Annotated[int, typer.Option(min=1, help="Requests for each length of prompt; the median counts.")] = 3


class RestartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro bench restart`."""

    engine: Annotated[str, typer.Option(help="The engine that is killed.")] = "paced"
    model: Annotated[str | None, typer.Option(help="Its model directory.")] = None
    kills: Annotated[int, typer.Option(min=1, help="How often.")] = 200
    streams: Annotated[int, typer.Option(min=1, help="Streams under way at each kill.")] = 64
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


class ExecutorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro bench executor`."""

    model: Annotated[str, typer.Argument(help="Model directory, or a model that `muro pull` has fetched.")]
    engine_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the engine; may be repeated.")
    ] = None
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per stream and round.")] = 64
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro bench scheduler`."""

    steps: Annotated[int, typer.Option(min=100, help="Tokens of each request.")] = 400
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each kind; the median counts.")] = 3
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


class RanksOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro bench ranks`."""

    ranks: Annotated[int, typer.Option(min=2, help="Engines.")] = 4
    streams_per_rank: Annotated[int, typer.Option(min=1, help="Streams at once on each.")] = 16
    step_ms: Annotated[float, typer.Option(min=0.1, help="Milliseconds of a simulated step.")] = 10.0
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of each stream.")] = 256
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each kind; the median counts.")] = 3
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


@flags(WallOptions)
def wall(options: WallOptions) -> None:
    """What the wall costs; takes about a minute and a half."""
    from muro.bench import report
    from muro.bench import wall as measure

    result = measure.run(measure.QUICK if options.quick else None, _progress)
    print(json.dumps(result) if options.json else report.text(result))


@flags(ServerLoadOptions)
def serve(options: ServerLoadOptions) -> None:
    """Load on any OpenAI-compatible server."""
    from muro.bench import serve as load

    values = {name: value for name, value in msgspec.structs.asdict(options).items() if name not in ("pid", "json")}
    result = load.run(load.Load(**values, pids=tuple(options.pid or ())))
    print(json.dumps(result) if options.json else load.text(result))
    if result["errors"]:
        sys.exit(1)


@flags(ProfileOptions)
def profile(options: ProfileOptions) -> None:
    """Measure a server's latencies; prints a profile for `muro serve --engine sim --engine-option profile=FILE`."""
    from muro.bench import profile as measure

    plan = measure.Plan(**msgspec.structs.asdict(options))
    if not plan.model:
        plan = msgspec.structs.replace(plan, model=measure.served_model(plan.url))
    print(measure.toml(measure.run(plan, _progress)), end="")


@flags(RestartOptions)
def restart(options: RestartOptions) -> None:
    """Kill the engine again and again: how soon is everybody told, and served again?"""
    from muro.bench import restart as measure

    kills = measure.Kills(options.engine, options.model, options.kills, options.streams)
    result = measure.run(kills, _progress)
    print(json.dumps(result) if options.json else measure.text(result))


@flags(ExecutorOptions)
def executor(options: ExecutorOptions) -> None:
    """The model alone, without scheduler, process boundary or server."""
    from muro.bench import executor as measure
    from muro.config import home
    from muro.engines.openvino.options import OpenVINOOptions
    from muro.models.pull import pulled

    given = msgspec.convert(pairs(options.engine_option or ()), OpenVINOOptions, strict=False)
    directory = pulled(options.model, home()) or options.model
    result = measure.run(directory, given, tokens=options.tokens, progress=_progress)
    print(json.dumps(result) if options.json else _plain(result))


@flags(SchedulerOptions)
def scheduler(options: SchedulerOptions) -> None:
    """What scheduling costs, with a model that takes no time; takes about half a minute."""
    from muro.bench import scheduler as measure

    result = measure.run(steps=options.steps, rounds=options.rounds, progress=_progress)
    print(json.dumps(result) if options.json else measure.text(result))


@flags(RanksOptions)
def ranks(options: RanksOptions) -> None:
    """What several simulated engines are worth, and what the death of one costs the others."""
    from muro.bench import ranks as measure

    values = {name: value for name, value in msgspec.structs.asdict(options).items() if name != "json"}
    result = measure.run(measure.Ranks(**values), _progress)
    print(json.dumps(result) if options.json else measure.text(result))


def make_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    for command in (wall, serve, profile, restart, executor, scheduler, ranks):
        app.command(command.__name__, cls=Command, help=command.__doc__)(command)
    return app


def _progress(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _plain(result: dict[str, Any]) -> str:
    return "\n".join(f"{name:<24} {value}" for name, value in result.items())
