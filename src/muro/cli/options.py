"""Flags from structs: each option is written once, as a field with its type, default and help.

`@flags(Options)` makes a command line of a function that takes one `Options`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
import typer

from muro.cli.rank_options import RankOptions
from muro.config import LONGEST, RestartPolicy
from muro.errors import ConfigError

O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741

_HTTP, _ENGINE, _MANY = "HTTP", "Model and engine", "Engines elsewhere"

LOOPBACK = "127.0.0.1"

EXIT_CODES = """\
Exit codes: 0 asked to stop; 2 a setting is wrong; 10 the engine failed while serving; 11 it did not start;
12 (with --headless) the front-end has gone; 13 the engine died more often than --restart-budget allows; 129, 130,
143 forced by a fifth signal."""


class ServeOptions(RankOptions, frozen=True, kw_only=True):
    """Flags of `muro serve`; named as those of `vllm serve` where they mean the same."""

    model: Annotated[
        str | None, typer.Argument(help="Model directory, or the name of a model that `muro pull` has fetched.")
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(
            help="What runs the model: a built-in name (openvino, vllm, echo, sim), module:factory, or "
            "path.py:factory. Default: openvino. An engine that needs no model is served with a byte-level tokenizer.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    engine_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the engine; may be repeated.", rich_help_panel=_ENGINE),
    ] = None
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PLACE:]KIND[=ARGUMENT][@CONDITION,...]",
            help="Of the simulator (--engine sim): what goes wrong, and when, as in hang@time=30; may be repeated.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    tokenizer: Annotated[
        str | None, typer.Option(help="Directory with tokenizer.json, if not the model's.", rich_help_panel=_ENGINE)
    ] = None
    chat_template: Annotated[
        str | None, typer.Option(help="File with a chat template, if not the model's.", rich_help_panel=_ENGINE)
    ] = None
    generation_config: Annotated[
        Literal["auto", "vllm"],
        typer.Option(
            help="Sampling where a request gives none: the model's own recommendation, or neutral (vllm).",
            rich_help_panel=_ENGINE,
        ),
    ] = "auto"
    tool_call_parser: Annotated[
        Literal["hermes", "llama3_json"] | None,
        typer.Option(
            help="How the model calls tools: <tool_call>{json}</tool_call>, or an answer that is JSON. Default: as its "
            "chat template shows.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and output together.", rich_help_panel=_ENGINE)
    ] = None
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that run at once.", rich_help_panel=_ENGINE)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per step of the engine.", rich_help_panel=_ENGINE)
    ] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"] | None,
        typer.Option(
            help="Who runs first: who came first, or whose priority is the smallest. Default: fcfs.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Whether prompts that begin like an earlier one use what was computed for it. Default: yes.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    async_scheduling: Annotated[
        bool | None,
        typer.Option(
            "--async-scheduling/--no-async-scheduling",
            help="Whether a step is scheduled while the one before it runs. Default: no.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    startup_timeout: Annotated[
        float, typer.Option(help="Seconds that a starting engine may show no progress.", rich_help_panel=_ENGINE)
    ] = 600.0
    stall_limit: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds for which an engine may owe something (the end of a step, a token, an answer) and do nothing "
            "towards it; then it is taken for stuck and killed. Longer than the longest step. 0: for ever.",
            rich_help_panel=_ENGINE,
        ),
    ] = 60.0
    restart: Annotated[
        Literal["never", "on-failure", "always"],
        typer.Option(
            help="Whether an engine that died is started again; the server stays up meanwhile. on-failure: unless it "
            "ended with exit code 0, or because its settings are wrong.",
            rich_help_panel=_ENGINE,
        ),
    ] = "on-failure"
    restart_backoff: Annotated[
        str,
        typer.Option(
            metavar="FIRST/MOST",
            help="Seconds from a death to the new start; they double with each further death, up to the second number.",
            rich_help_panel=_ENGINE,
        ),
    ] = "0.1/10"
    restart_budget: Annotated[
        str,
        typer.Option(
            metavar="NUMBER/SECONDS",
            help="So many deaths within so many seconds are followed by a new start; with one more the server ends.",
            rich_help_panel=_ENGINE,
        ),
    ] = "5/300"
    restart_wait: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds for which new requests wait for an engine that is being started again, before they get 503. "
            "0: at once.",
            rich_help_panel=_ENGINE,
        ),
    ] = 60.0
    on_engine_death: Annotated[
        Literal["fail", "replay"],
        typer.Option(
            help="What becomes of requests that an engine was working on when it died and is started again. replay: "
            "they go on behind what their callers have got, who see a pause; one that keeps killing engines fails.",
            rich_help_panel=_ENGINE,
        ),
    ] = "fail"
    log_level: Annotated[str, typer.Option(help="Of front-end and engine.", rich_help_panel=_ENGINE)] = "WARNING"
    host: Annotated[str, typer.Option(help="Address to serve on.", rich_help_panel=_HTTP)] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to serve on; 0: any free one.", rich_help_panel=_HTTP)
    ] = 8000
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Answer /livez, /readyz and /health on this port, too: from a thread of its own, in plain HTTP, "
            "however many callers crowd the other one. Default: no such port.",
            rich_help_panel=_HTTP,
        ),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="What callers call the model; may be repeated, the first one is shown.", rich_help_panel=_HTTP
        ),
    ] = None
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds that requests under way get after SIGTERM or Ctrl-C; new ones get 503 meanwhile. 0 ends them "
            "at once. A second signal ends the patience; the fifth kills the engines at once.",
            rich_help_panel=_HTTP,
        ),
    ] = 0.0
    api_server_count: Annotated[
        int,
        typer.Option(
            "--api-server-count",
            "-asc",
            min=1,
            max=64,
            help="Server processes on this port, in front of the same engines. One that dies is replaced, and only its "
            "own answers end. Bounds of HTTP hold for each of them.",
            rich_help_panel=_HTTP,
        ),
    ] = 1
    headless: Annotated[
        bool,
        typer.Option(
            "--headless",
            help="No HTTP: run one engine here. It dials the front-end at --data-parallel-address, "
            "--data-parallel-rpc-port, and waits for it, --startup-timeout seconds at most.",
            rich_help_panel=_MANY,
        ),
    ] = False
    data_parallel_address: Annotated[
        str | None,
        typer.Option(
            "--data-parallel-address",
            "-dpa",
            help="Address of the front-end's sockets. Default: 127.0.0.1, or with ray this machine's in the cluster.",
            rich_help_panel=_MANY,
        ),
    ] = None
    data_parallel_rpc_port: Annotated[
        int,
        typer.Option(
            "--data-parallel-rpc-port",
            "-dpp",
            min=0,
            max=65535,
            help="Port at which engines that are started elsewhere are greeted.",
            rich_help_panel=_MANY,
        ),
    ] = 29550
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            help="With --headless: when the front-end goes, keep the weights, and serve the next one at that address.",
            rich_help_panel=_MANY,
        ),
    ] = False
    peer_release: Annotated[
        str,
        typer.Option(
            metavar="auto|0.25|...|0.33",
            help="With --headless: vLLM's release of the front-end, whose layout is written. auto: what every release "
            "reads, and more as soon as its first request tells that it is 0.28 or later.",
            rich_help_panel=_MANY,
        ),
    ] = "auto"
    curve_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Talk to engines (or, with --headless, to the front-end) on other machines with keys: this machine's "
            "and those of its peers, from a directory that `muro keys new` has made.",
            rich_help_panel=_MANY,
        ),
    ] = None
    curve_secret_fd: Annotated[
        int | None,
        typer.Option(
            min=3,
            metavar="N",
            help="Inherited descriptor to read this machine's secret key from, instead of the file in --curve-dir.",
            rich_help_panel=_MANY,
        ),
    ] = None
    insecure_tcp: Annotated[
        bool,
        typer.Option(
            "--insecure-tcp",
            help="Talk to other machines in the clear: whoever reaches the sockets can take part. Needed for peers "
            "other than muro; without it, only 127.0.0.1 and ::1 are dialled or listened on without keys.",
            rich_help_panel=_MANY,
        ),
    ] = False


def flags(options: type[O]) -> Callable[[Callable[[O], None]], Callable[..., None]]:
    """Make a command of a function that takes one struct; every field becomes an argument or option."""

    def decorate(command: Callable[[O], None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            _check_numbers(values)
            command(options(**values))

        hints = get_type_hints(options, include_extras=True)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.required else field.default,
                annotation=hints[field.name],
            )
            # Those of bases come last, as does what is looked up least often.
            for field in sorted(msgspec.structs.fields(options), key=lambda f: f.name not in options.__annotations__)
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = hints
        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        return run

    return decorate


def _check_numbers(values: dict[str, Any]) -> None:
    """Refuse what is no amount of anything: infinity and nan, which parse as numbers. Raises ConfigError."""
    for name, value in values.items():
        if isinstance(value, float) and not abs(value) <= LONGEST:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: this must be a number, of {LONGEST:.0f} at most")


def engine_options(options: ServeOptions) -> dict[str, Any]:
    """What the engine is given: `NAME=VALUE`s, and the bounds that have flags of their own. Raises ConfigError."""
    given = pairs(options.engine_option or ())
    for name in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "scheduling_policy",
        "enable_prefix_caching",
        "async_scheduling",
    ):
        if (value := getattr(options, name)) is not None:
            given[name] = value
    if options.fault:
        if options.engine != "sim":
            raise ConfigError("--fault is the simulator's; serve that: --engine sim")
        given["fault"] = options.fault
    return given


def restart_policy(options: ServeOptions) -> RestartPolicy:
    """What the `--restart` flags say. Raises ConfigError."""
    first, most = _two_numbers("--restart-backoff", options.restart_backoff, "0.1/10")
    budget, window = _two_numbers("--restart-budget", options.restart_budget, "5/300")
    return RestartPolicy(
        policy=options.restart, backoff_first=first, backoff_max=most, budget=int(budget), window=window
    )


def _two_numbers(flag: str, text: str, example: str) -> tuple[float, float]:
    one, _, other = text.partition("/")
    try:
        return float(one), float(other)
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not two numbers with a slash between them; {example} works") from None


def pairs(texts: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` as a map; the engine converts the values. Raises ConfigError."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"--engine-option {text!r} is not NAME=VALUE")
        found[name.replace("-", "_")] = value
    return found
