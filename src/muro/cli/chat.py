"""`muro chat`: a conversation in the terminal with any OpenAI-compatible server."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from muro.cli.options import flags
from muro.errors import RequestFailedError

if TYPE_CHECKING:
    from muro.cli.talking import Message, Partner

HELP = """Chat with a model that is served, here or elsewhere.

Ctrl-C stops an answer, Ctrl-D ends. A line that ends in a backslash goes on in the next one. Without a terminal each
line of standard input is a message.

\b
Examples:
    muro chat
    muro chat http://10.0.0.7:8000 --system-prompt "You answer in one sentence."
    muro chat --quick "What is the capital of France?"
"""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `muro chat`."""

    url: Annotated[str, typer.Argument(help="Address of the server.")] = "http://127.0.0.1:8000"
    model: Annotated[str | None, typer.Option(help="Name of the model; default: the first that is served.")] = None
    system_prompt: Annotated[str | None, typer.Option(help="What the model is told before all else.")] = None
    quick: Annotated[str | None, typer.Option("--quick", "-q", help="Say this, print the answer, and end.")] = None
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer; default: as many as fit.")] = None
    temperature: Annotated[float | None, typer.Option(min=0, help="Default: as the server has it.")] = None
    seed: Annotated[int | None, typer.Option(help="The same answers each time.")] = None
    api_key_file: Annotated[str | None, typer.Option(help="File whose first line is the server's API key.")] = None


@flags(ChatOptions)
def chat(options: ChatOptions) -> None:
    """See `HELP`."""
    from muro.cli.calling import Caller, read_key
    from muro.cli.talking import Partner

    partner = Partner(Caller(options.url, read_key(options.api_key_file)))
    talk = Talk(partner, options)
    if options.quick is not None:
        sys.exit(0 if talk.say(options.quick) else 1)
    talk.until_the_end()


class Talk:
    """One conversation. Whatever the server refuses is forgotten, so that the talk can go on.

    Args:
        partner: who answers.
        options: how.
    """

    def __init__(self, partner: Partner, options: ChatOptions) -> None:
        self._partner = partner
        wanted = {"max_tokens": options.max_tokens, "temperature": options.temperature, "seed": options.seed}
        self._options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        self._options["model"] = options.model or next(iter(partner.models()), "")
        self._messages: list[Message] = []
        if options.system_prompt is not None:
            self._messages.append({"role": "system", "content": options.system_prompt})
        self._at_terminal = sys.stdin.isatty()

    def until_the_end(self) -> None:
        """Talk until standard input ends."""
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]  # it is a text file
        if self._at_terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives `input` editing and history
            print(f"{self._options['model']} at {self._partner.url}   (Ctrl-C stops an answer, Ctrl-D ends)")
        while True:
            try:
                said = self._heard()
            except EOFError:
                if self._at_terminal:
                    print()
                return
            except KeyboardInterrupt:
                if not self._at_terminal:
                    raise
                print("\n(Ctrl-D ends)")
                continue
            if said.strip():
                self.say(said)

    def say(self, text: str) -> bool:
        """Say something and print the answer; whether there was one. An answer that is stopped counts as far as it
        went."""
        self._messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        note = ""
        stream = self._partner.answer(self._messages, self._options)
        try:
            while True:
                try:
                    piece = next(stream)
                except StopIteration as end:
                    note = "" if end.value in ("stop", "") else f"({end.value})"
                    break
                pieces.append(piece)
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            note = "(stopped)"
        except RequestFailedError as error:
            if pieces:
                print()
            print(f"muro: {error.message}", file=sys.stderr, flush=True)
            self._messages.pop()
            return False
        finally:
            stream.close()
        print(f" {note}" if note and self._at_terminal else "", flush=True)
        self._messages.append({"role": "assistant", "content": "".join(pieces)})
        return True

    def _heard(self) -> str:
        """The next message. Raises EOFError, KeyboardInterrupt."""
        lines: list[str] = []
        while True:
            line = input(("... " if lines else "> ") if self._at_terminal else "")
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
