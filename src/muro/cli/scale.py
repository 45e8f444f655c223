"""`muro scale`: change the number of engines behind a server."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from muro.cli.options import flags
from muro.errors import RequestFailedError

HELP = """Change how many engines a server has, while it serves.

New engines are started beside those that serve. The highest ranks leave: they get no more requests, and end when they
have finished those that they have. Ctrl-C gives up what has not happened yet. The server must have been started with
--enable-dev-mode.

\b
Examples:
    muro scale 4
    muro scale 1 --url http://10.0.0.7:8000 --drain-timeout 600
"""


class ScaleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro scale`."""

    engines: Annotated[int, typer.Argument(min=1, max=256, help="How many there shall be.")]
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000"
    drain_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="For the requests of an engine that leaves; then they end."),
    ] = 120.0
    api_key_file: Annotated[str | None, typer.Option(help="File whose first line is the server's API key.")] = None


@flags(ScaleOptions)
def scale(options: ScaleOptions) -> None:
    """See `HELP`."""
    from muro.cli.calling import Caller, read_key

    caller = Caller(options.url, read_key(options.api_key_file), patience=None)  # an engine may take long to load
    body = json.dumps({"engines": options.engines, "drain_timeout": options.drain_timeout})
    with caller.asked("POST", "/scale", body, answers=(200, 404)) as response:
        if response.status == 404:
            what = f"{options.url} does not let callers control its engines; start it with --enable-dev-mode"
            raise RequestFailedError(what)
        ranks = json.loads(response.read())["ranks"]
    engines = "1 engine serves" if len(ranks) == 1 else f"{len(ranks)} engines serve"
    print(f"{engines}: {', '.join(map(str, ranks))}")
