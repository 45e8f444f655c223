"""`muro wire check`: examine an engine or a front-end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from muro.cli.options import flags
from muro.errors import ConfigError

if TYPE_CHECKING:
    from muro.probe.check import Report

HELP = """Examine an engine or a front-end: does it speak the protocol, and stand what others get wrong?

Or judge what engines have said in a recording of `muro wire tap`, without asking anything.

\b
Examples:
    muro wire check --engine tcp://127.0.0.1:29550
        plays a front-end there; then start the engine:
        muro serve MODEL --headless -dpa 127.0.0.1 -dpp 29550
    muro wire check --frontend tcp://127.0.0.1:29550 --http http://127.0.0.1:8000
        plays an engine that dials there; the front-end was started before:
        muro serve MODEL -dpl 0 -dpp 29550
    muro wire check --recording wire.rec
        judges every message that an engine has sent in it

\b
Prints a row for each case: whether it holds, what must hold and why, what was seen. The last cases are rough: they have
ended engines and front-ends. What is examined must have nothing else to do.

\b
Exit codes: 0 everything that was asked holds; 1 something does not; 2 a setting is wrong.
"""

_ONE_OF = "say whom to examine: one of --engine ADDRESS, --frontend ADDRESS and --recording FILE"
_LIMITS, _WHO = "Limits", "Whom"


class WireCheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro wire check`."""

    engine: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Bind here, and examine the engine that dials in.", rich_help_panel=_WHO),
    ] = None
    frontend: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Examine the front-end that listens here.", rich_help_panel=_WHO),
    ] = None
    recording: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Judge what engines said in this recording.", rich_help_panel=_WHO),
    ] = None
    http: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --frontend: its OpenAI API. Without it, only what it sends by itself is judged.",
            rich_help_panel=_WHO,
        ),
    ] = None
    pid: Annotated[
        int | None,
        typer.Option(help="With --engine: its process, which gets SIGTERM at the end.", rich_help_panel=_WHO),
    ] = None
    rank: Annotated[
        int, typer.Option(min=0, max=65535, help="With --frontend: which engine to play.", rich_help_panel=_WHO)
    ] = 0
    release: Annotated[
        str | None,
        typer.Option(
            help="With --engine and --recording: that of the front-end, as 0.28. Default: the engine's own.",
            rich_help_panel=_WHO,
        ),
    ] = None
    insecure_tcp: Annotated[
        bool,
        typer.Option("--insecure-tcp", help="Needed where other machines reach the address.", rich_help_panel=_WHO),
    ] = False
    skip: Annotated[
        list[str] | None, typer.Option(metavar="CASE", help="A case that is not asked; may be repeated.")
    ] = None
    hello_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until the peer must have greeted.", rich_help_panel=_LIMITS)
    ] = 60.0
    loading_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that an engine may load.", rich_help_panel=_LIMITS)
    ] = 600.0
    patience: Annotated[
        float, typer.Option(min=0.1, help="Seconds that any answer may take.", rich_help_panel=_LIMITS)
    ] = 10.0
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


@flags(WireCheckOptions)
def check(options: WireCheckOptions) -> None:
    """See `HELP`."""
    report = _report(options, _told if sys.stderr.isatty() else lambda name: None)
    print(json.dumps(report.json()) if options.json else report)
    sys.exit(0 if report.passed else 1)


def _report(options: WireCheckOptions, progress: Callable[[str], None]) -> Report:
    from muro.probe.check import check_engine, check_frontend, check_recording
    from muro.probe.check.engine_exam import Patience

    if sum(who is not None for who in (options.engine, options.frontend, options.recording)) > 1:
        raise ConfigError(_ONE_OF)
    patience = Patience(hello=options.hello_timeout, loading=options.loading_timeout, answer=options.patience)
    skip = options.skip or ()
    if options.engine is not None:
        if options.http is not None:
            raise ConfigError("--http goes with --frontend: an engine has no HTTP API")
        return check_engine(
            options.engine,
            patience=patience,
            release=options.release,
            skip=skip,
            pid=options.pid,
            insecure_tcp=options.insecure_tcp,
            progress=progress,
        )
    if options.recording is not None:
        _refuse_more(options)
        return check_recording(options.recording, options.release)
    if options.frontend is None:
        raise ConfigError(_ONE_OF)
    if options.pid is not None or options.release is not None:
        raise ConfigError("--pid and --release go with --engine, a front-end is of its own release")
    return check_frontend(
        options.frontend,
        http=options.http,
        patience=patience,
        rank=options.rank,
        skip=skip,
        insecure_tcp=options.insecure_tcp,
        progress=progress,
    )


def _refuse_more(options: WireCheckOptions) -> None:
    """Nothing is asked of a recording, so nothing can be said about how."""
    plain = WireCheckOptions()
    for name in ("http", "pid", "rank", "insecure_tcp", "skip", "hello_timeout", "loading_timeout", "patience"):
        if getattr(options, name) != getattr(plain, name):
            raise ConfigError(f"--{name.replace('_', '-')} makes no sense with --recording: nobody is asked anything")


def _told(name: str) -> None:
    print(f"... {name}", file=sys.stderr, flush=True)
