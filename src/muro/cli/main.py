"""The command `muro`: which commands there are, and how errors end them.

What takes time to import is imported in functions, after the stop signals were taken over.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING

from muro.cli.first import split_if_first
from muro.cli.stopping import stopping

if TYPE_CHECKING:
    import typer

    from muro.errors import MuroError

HELP = """An inference engine in a process of its own, and an OpenAI-compatible server in front of it.

\b
First steps:
    muro serve --engine echo                  repeats what it is told
    muro serve "$(muro pull demo)"            a small real model
    muro chat                                 talk to what is served
    muro bench serve http://127.0.0.1:8000    puts load on it
"""

COMMANDS = {
    "serve": "Serve a model with an OpenAI-compatible API.",
    "chat": "Chat with a model that is served, here or elsewhere.",
    "scale": "Change how many engines a server has, while it serves.",
    "pull": "Fetch a model and prepare it.",
    "keys": "Keys for engines and front-ends on different machines.",
    "wire": "Look at what front-ends and engines say to each other.",
    "bench": "Measure: the wall, a server, the bare model.",
}
"""Each is a module of this room; with what the list of commands says of it."""
_GROUPS = ("keys", "wire", "bench")
"""These have commands of their own."""


def main() -> None:
    """Entry point of the command line."""
    _open_missing_streams()
    if sys.argv[1:2] == ["serve"]:  # before anything is imported that takes its time
        split_if_first()
        stopping.take()
        if "--headless" in sys.argv:
            from muro.child.warden import post_alone

            post_alone()
    from muro.errors import MuroError

    try:
        _run()
    except MuroError as error:
        print(f"muro: {error.message}", file=sys.stderr)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        print("muro: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        gc.freeze()  # else the interpreter looks for cycles in all that it is about to drop: 0.1 s of a server's end


def _open_missing_streams() -> None:
    """Put /dev/null where whoever started us left a standard stream closed (`2>&-`): else the first socket that we
    open would be in its place, and get what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def exit_code(error: MuroError) -> int:
    """With what a command ends that failed so."""
    from muro.errors import ConfigError, EngineDeadError, StartupError
    from muro.wire.failure import ExitCode

    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, StartupError):
        # An engine that refused its settings has said so with its exit code.
        return ExitCode.CONFIG if error.exit_status == ExitCode.CONFIG else ExitCode.STARTUP_FAILED
    return ExitCode.ENGINE_FAILED if isinstance(error, EngineDeadError) else 1


def _tell_version(asked: bool) -> None:
    if asked:
        from muro.version import VERSION

        print(VERSION)
        sys.exit(0)


def _run() -> None:
    try:
        import typer
    except ModuleNotFoundError:
        from muro.errors import MissingExtraError

        raise MissingExtraError("the command line", "cli") from None
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    version_flag = typer.Option(False, "--version", is_eager=True, callback=_tell_version, help="Print the version.")

    # The help is given here: a callback's own replaces that of the application.
    @app.callback(help=HELP)
    def before_any_command(asked: bool = version_flag) -> None:
        """Flags that need no command."""

    @app.command("version", help="Print the version.")
    def show_version() -> None:
        _tell_version(True)

    # What is asked for is known before the others are imported, which takes its time.
    asked_for = sys.argv[1] if sys.argv[1:] and sys.argv[1] in COMMANDS else None
    for name in COMMANDS if asked_for is None else [asked_for]:
        _add(app, name)
    app()


def _add(app: typer.Typer, name: str) -> None:
    """Make one of COMMANDS known."""
    from muro.cli.help import Command

    module = importlib.import_module(f"muro.cli.{name}")
    if name in _GROUPS:
        app.add_typer(module.make_app(), name=name, short_help=COMMANDS[name])
    else:
        app.command(name, cls=Command, help=module.HELP, short_help=COMMANDS[name])(getattr(module, name))
