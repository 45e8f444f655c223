"""`muro keys`: keys for engines and front-ends on different machines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from muro.cli.help import Command
from muro.cli.options import flags

if TYPE_CHECKING:
    from collections.abc import Callable

HELP = "Keys with which engines and front-ends on different machines know each other."

NEW_HELP = """Make a pair of keys for this machine, and a directory for the public keys of its peers.

Each machine makes its own; only public keys travel. Example, with an engine on another machine than the front-end:

\b
    muro keys new ~/.config/muro/keys
"""


class NewOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro keys new`."""

    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where the keys shall lie; made if need be.")]


@flags(NewOptions)
def new(options: NewOptions) -> None:
    """See `NEW_HELP`."""
    from muro.transport.keys import PEERS, SECRET_FILE, make_keys

    directory = os.path.expanduser(options.directory)
    public = make_keys(directory)
    host = os.uname().nodename
    print(f"""\
made {public} and {SECRET_FILE} (which stays here, mode 0600)

1. Do the same on the other machine.
2. Copy the public keys, and nothing else, both ways. From here:
       scp {public} OTHER:DIR/{PEERS}/{host}.key
   A front-end lets in the keys in its {PEERS}/ (a new one needs no restart); an engine has one there, its front-end's.
3. Serve:
       front-end   muro serve MODEL -dp 1 -dpl 0 -dpa ADDRESS --curve-dir {directory}
       engine      muro serve MODEL --headless -dpa ADDRESS --curve-dir {directory}
   ADDRESS is the front-end's, in both; --curve-dir is each machine's own.""")


def make_app() -> typer.Typer:
    """The commands of `muro keys`."""
    app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode=None)
    command: Callable[[Callable[..., None]], Callable[..., None]] = app.command("new", cls=Command, help=NEW_HELP)
    command(new)

    @app.callback(help=HELP)
    def before_any_command() -> None:
        """Keeps `new` a command of its own although it is the only one."""

    return app
