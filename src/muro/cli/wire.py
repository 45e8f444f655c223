"""`muro wire`: looking at what front-ends and engines say to each other."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from muro.cli import wire_check
from muro.cli.help import Command
from muro.cli.options import flags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from muro.probe.journal import Journal
    from muro.probe.recording import Header, Recorder
    from muro.probe.verdict import Result
    from muro.transport.wakeup import Wakeup

HELP = """Look at the wire between front-ends and engines, whoever wrote them: record it, show, play again, examine.

\b
Examples:
    muro wire tap --listen tcp://127.0.0.1:29551 --to tcp://127.0.0.1:29550 --record wire.rec
    muro wire show wire.rec
    muro wire replay wire.rec --engine tcp://127.0.0.1:29550
    muro wire check --engine tcp://127.0.0.1:29550
    muro wire check --frontend tcp://127.0.0.1:29550 --http http://127.0.0.1:8000
"""

TAP_HELP = """Stand between a front-end and its engines, pass on every message, and record it.

Engines dial --listen instead of the front-end, the tap dials the front-end at --to as they would. Either side may be
started first. Only the addresses in INIT are changed. Ctrl-C ends it; the two sides then see each other go.

A recording has no prompts and no generated tokens, unless --with-prompts is given.

\b
Example, in three terminals:
    muro serve --engine echo -dp 1 -dpl 0 -dpp 29550
    muro wire tap --listen tcp://127.0.0.1:29551 --to tcp://127.0.0.1:29550 --record wire.rec
    muro serve --engine echo --headless -dpp 29551
"""

SHOW_HELP = """Print a recording: a line for each message, with the fields that matter.

\b
A line has: seconds since the start, the front-end process (c0), the direction (-> to the engine, <- from it,
-- nobody: an event), the engine (E0), the socket, the kind of the message, what it says.
\b
Examples:
    muro wire show wire.rec --request cmpl-12 --full
    muro wire show wire.rec --kind add --kind outputs --json
"""

REPLAY_HELP = """Play one side of a recording again, and say in what the other side differs from the recorded one.

With --engine this is the front-end: it waits at ADDRESS for as many engines as were recorded, and asks them the same.
With --frontend it is the engines: it dials the front-end at ADDRESS, and gives to each request the answer that the next
recorded request was given. Prompts and tokens that were not recorded are made up, always the same ones.

The exit code is 0 if nothing differs, and 1 if something does.

\b
Example, in two terminals:
    muro wire replay wire.rec --engine tcp://127.0.0.1:29550
    muro serve --engine echo --headless -dpp 29550
"""

_INSECURE = typer.Option("--insecure-tcp", help="Allow other machines; in the clear, whoever comes can take part.")


class TapOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro wire tap`."""

    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Where engines dial; port 0: any, which is printed.")]
    to: Annotated[str, typer.Option(metavar="ADDRESS", help="The front-end's handshake address.")]
    record: Annotated[
        str | None, typer.Option(metavar="FILE", help="Record to a new file, for its owner's eyes; else only count.")
    ] = None
    with_prompts: Annotated[
        bool, typer.Option("--with-prompts", help="Record every frame as it is, prompts and answers included.")
    ] = False
    max_frame_bytes: Annotated[int, typer.Option(min=64, help="Record no more than this of one frame.")] = 1 << 20
    max_file_bytes: Annotated[int, typer.Option(min=1024, help="End the recording at this size.")] = 1 << 30
    insecure_tcp: Annotated[bool, _INSECURE] = False


class ShowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro wire show`."""

    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording.")]
    request: Annotated[str, typer.Option(metavar="ID", help="Only what concerns this request.")] = ""
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Only messages of this kind: hello, init, ready, response, add, abort, call, wave, outputs, stats, "
            "answer, dead, subscribe, gate, event, unknown; may be repeated."
        ),
    ] = None
    release: Annotated[
        str, typer.Option(help="Read outputs as this release writes them (0.25 ... 0.33); auto: as the engine says.")
    ] = "auto"
    full: Annotated[bool, typer.Option("--full", help="All fields of each message.")] = False
    json: Annotated[bool, typer.Option("--json", help="A JSON object for each message.")] = False


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro wire replay`."""

    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording.")]
    engine: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Be the front-end; engines dial this.")] = None
    frontend: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Be the engines; the front-end is here.")] = (
        None
    )
    speed: Annotated[
        float, typer.Option(min=0.0, help="1: in the time that it took; 10: ten times as fast; 0: without pauses.")
    ] = 1.0
    patience: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the other side when it is silent.")] = (
        30.0
    )
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False
    insecure_tcp: Annotated[bool, _INSECURE] = False


@flags(TapOptions)
def tap(options: TapOptions) -> None:
    """See `TAP_HELP`."""
    import os

    from muro.probe.journal import Journal
    from muro.probe.recording import Recorder, create
    from muro.probe.tap import Tap, check_addresses
    from muro.probe.withholding import Withholder
    from muro.transport.context import flush

    check_addresses(options.listen, options.to, options.insecure_tcp)  # before a file is made
    recorder: Recorder | None = None
    withholder = None if options.with_prompts else Withholder(options.max_frame_bytes)
    if options.record is not None:
        recorder = Recorder(create(options.record), options.max_file_bytes)
    journal = Journal(recorder, withholder, options.max_frame_bytes, _tell)
    try:
        with _stopping() as stop, Tap(options.listen, options.to, journal, insecure=options.insecure_tcp) as tapped:
            if recorder is not None:
                recorder.begin(_header(options, tapped.address))
            _tell(f"engines dial {tapped.address}; their front-end is {options.to}   (Ctrl-C ends it)")
            tapped.run(stop)
        flush(2.0)
    finally:
        if recorder is not None:
            recorder.close()
            if not recorder.size and options.record is not None:  # nobody could listen
                os.unlink(options.record)
    _print_counts(journal, recorder, options.record)


@flags(ShowOptions)
def show(options: ShowOptions) -> None:
    """See `SHOW_HELP`."""
    from muro.errors import ConfigError
    from muro.probe import show as showing
    from muro.probe.reading import Kind, Reader
    from muro.probe.recording import opened
    from muro.wire.releases import layout_for

    try:
        kinds = frozenset(Kind(kind) for kind in options.kind or ())
    except ValueError as error:
        raise ConfigError(f"--kind: {error}; there is {', '.join(kind.value for kind in Kind)}") from None
    wanted = showing.Filter(options.request, kinds)
    reader = Reader(None if options.release == "auto" else layout_for(options.release))
    with opened(options.file) as recording:
        messages = map(reader.read, recording.records())
        shown = 0
        try:
            if options.json:
                lines = showing.json_lines(messages, wanted, recording.header, full=options.full)
            else:
                print(showing.heading(recording.header))
                lines = showing.lines(messages, wanted, full=options.full)
            for shown, line in enumerate(lines, 1):  # noqa: B007 - how many there were is told below
                print(line)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough
            sys.stderr.close()
            return
        if not shown and (options.request or options.kind):
            print("no message is of this request and these kinds", file=sys.stderr)
        if recording.cut_off:
            print("the recording ends in the midst of a record: its writer was interrupted", file=sys.stderr)


@flags(ReplayOptions)
def replay(options: ReplayOptions) -> None:
    """See `REPLAY_HELP`."""
    from muro.errors import ConfigError
    from muro.probe.engines import as_engines
    from muro.probe.front_end import as_front_end
    from muro.probe.reading import Reader
    from muro.probe.recording import opened
    from muro.probe.script import script_of
    from muro.probe.show import printable
    from muro.probe.verdict import Pace
    from muro.transport.context import flush
    from muro.transport.endpoint import check_clear

    address = options.engine or options.frontend
    if address is None or (options.engine and options.frontend):
        raise ConfigError(
            "one of --engine ADDRESS (be its front-end) and --frontend ADDRESS (be its engines) is needed"
        )
    check_clear(address, options.insecure_tcp)
    with opened(options.file) as recording:
        script = script_of(map(Reader().read, recording.records()))
    pace = Pace(options.speed, options.patience)
    play = as_front_end if options.engine else as_engines
    with _stopping() as stop:
        result: Result = play(script, address, pace, stop, lambda words: print(printable(words), file=sys.stderr))
    flush(2.0)
    print(result.as_json() if options.json else result.text())
    if result.differences:
        sys.exit(1)


def make_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    commands: list[tuple[Callable[..., None], str, str]] = [
        (tap, TAP_HELP, "Stand between a front-end and its engines, and record."),
        (show, SHOW_HELP, "Print a recording."),
        (replay, REPLAY_HELP, "Play one side of a recording again."),
        (wire_check.check, wire_check.HELP, "Examine an engine or a front-end."),
    ]
    for command, text, short in commands:
        app.command(command.__name__, cls=Command, help=text, short_help=short)(command)
    return app


@contextlib.contextmanager
def _stopping() -> Iterator[Wakeup]:
    """Something that Ctrl-C and SIGTERM set, instead of ending the process."""
    from muro.child.signals import StopSignals
    from muro.transport.wakeup import Wakeup

    with Wakeup() as stop, StopSignals(stop.set):
        yield stop


def _header(options: TapOptions, listen: str) -> Header:
    import time

    from muro.probe.recording import Header

    return Header(
        started=time.time(),
        listen=listen,
        to=options.to,
        prompts=options.with_prompts,
        max_frame_bytes=options.max_frame_bytes,
        max_file_bytes=options.max_file_bytes,
    )


def _tell(words: str) -> None:
    """Say something, unless whoever listened has gone: messages pass as before."""
    import os

    from muro.probe.show import printable

    try:
        print(printable(words), flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, sys.stdout.fileno())  # also for what is still in the buffer
        os.close(null)


def _print_counts(journal: Journal, recorder: Recorder | None, file: str | None) -> None:
    for (role, direction), count in sorted(journal.messages.items()):
        _tell(f"{role.value:<15} {direction.value:<11} {count:>9} messages {journal.bytes[role, direction]:>13} bytes")
    if recorder is not None:
        missed = f", {recorder.missed} more were not recorded: {recorder.problem}" if recorder.missed else ""
        _tell(f"recorded {recorder.records} records, {recorder.size} bytes, in {file}{missed}")
