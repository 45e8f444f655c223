"""The command `muro`: which commands there are, and how errors end them.

What takes time to import is imported in functions, after the stop signals were taken over.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from muro.cli.first import split_if_first
from muro.cli.stopping import stopping

if TYPE_CHECKING:
    from muro.errors import MuroError

HELP = """An inference engine in a process of its own, and an OpenAI-compatible server in front of it.

\b
First steps:
    muro serve --engine echo                  repeats what it is told
    muro serve "$(muro pull demo)"            a small real model
    muro chat                                 talk to what is served
    muro bench serve http://127.0.0.1:8000    puts load on it
"""


def main() -> None:
    """Entry point of the command line."""
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
        from importlib.metadata import version

        print(version("muro"))
        sys.exit(0)


def _run() -> None:
    try:
        import typer
    except ModuleNotFoundError:
        from muro.errors import MissingExtraError

        raise MissingExtraError("the command line", "cli") from None
    from muro.cli import bench, chat, keys, pull, scale, serve, wire
    from muro.cli.help import Command

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

    app.command("serve", cls=Command, help=serve.HELP, short_help="Serve a model with an OpenAI-compatible API.")(
        serve.serve
    )
    app.command("chat", cls=Command, help=chat.HELP)(chat.chat)
    app.command("scale", cls=Command, help=scale.HELP)(scale.scale)
    app.command("pull", cls=Command, help=pull.HELP)(pull.pull)
    app.add_typer(keys.make_app(), name="keys", short_help="Keys for engines and front-ends on different machines.")
    app.add_typer(wire.make_app(), name="wire", short_help="Look at what front-ends and engines say to each other.")
    app.add_typer(bench.make_app(), name="bench", short_help="Measure: the wall, a server, the bare model.")

    @app.command("version", help="Print the version.")
    def show_version() -> None:
        _tell_version(True)

    app()
