"""`muro pull`: fetch and prepare a model of the catalogue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from muro.cli.options import flags

if TYPE_CHECKING:
    from collections.abc import Callable

HELP = """Fetch a model and prepare it. Prints the model directory as the last line of standard output.

NAME is a model of the catalogue, or hf:ORG/NAME for one of the Hugging Face Hub (needs muro[hub]), with @REVISION for a
revision and :FILE.gguf to choose a file. A model that is there is not fetched again. With --with-weights the directory
serves engines, too, that read safetensors alone, such as vLLM's.

Models and caches live in $MURO_HOME, else in muro/ of the user's cache directory.

\b
Example:
    muro serve "$(muro pull demo)"
    muro serve "$(muro pull hf:Qwen/Qwen3-0.6B)"
"""


class PullOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro pull`."""

    name: Annotated[str, typer.Argument(help="demo: SmolLM2-135M-Instruct, 98 MB; or hf:ORG/NAME.")]
    with_weights: Annotated[
        bool,
        typer.Option(
            "--with-weights",
            help="Write the weights of a GGUF file as safetensors beside it, too, in float16 (demo: 269 MB).",
        ),
    ] = False


@flags(PullOptions)
def pull(options: PullOptions) -> None:
    """See `HELP`."""
    from muro.config import home
    from muro.models.pull import pull as fetch

    with _Bars() as bars:
        directory = fetch(options.name, home(), progress=bars, with_weights=options.with_weights)
    print(directory)


class _Bars:
    """A bar per phase on a terminal, a line per phase elsewhere; on standard error."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._phases: dict[str, Any] = {}

    def __enter__(self) -> Callable[[str, int, int], None]:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._progress.start()
        return self._tell

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _tell(self, phase: str, done: int, total: int) -> None:
        if phase not in self._phases:
            self._phases[phase] = self._progress.add_task(phase, total=total) if self._progress else None
            if self._progress is None:
                size = f" ({total / 1e6:.0f} MB)" if total > 1000 else ""
                print(f"{phase}{size}", file=sys.stderr, flush=True)
        if self._progress is not None:
            self._progress.update(self._phases[phase], completed=done, total=total)
