"""`muro wire`: looking at what engines and front-ends say to each other."""

from __future__ import annotations

import typer

from muro.cli import wire_check
from muro.cli.help import Command

HELP = """Look at what engines and front-ends say to each other.

\b
Examples:
    muro wire check --engine tcp://127.0.0.1:29550
    muro wire check --frontend tcp://127.0.0.1:29550 --http http://127.0.0.1:8000
"""


def make_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    app.command("check", cls=Command, help=wire_check.HELP)(wire_check.check)
    return app
