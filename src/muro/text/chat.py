"""Chat messages -> one prompt, by the model's own template, as Hugging Face's templates expect to be run.

Templates are Jinja in an immutable sandbox, with `raise_exception`, `strftime_now`, `tojson` that does not escape
HTML, loop controls, and the block `generation` (which only marks text for training). A template belongs to the model
and is the operator's choice; messages are a stranger's. So messages are checked here, the length of the result is
bounded while it grows, repetition and ranges inside the template are bounded, and whatever a template raises on
strange messages is the request's error. Loops that print nothing cannot be bounded here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muro.errors import ConfigError, InvalidRequestError, MissingExtraError, UnsupportedOptionError
from muro.text.messages import checked_messages
from muro.text.tokenizer import read_tokenizer_config
from muro.text.tool_calls import form_of

if TYPE_CHECKING:
    import jinja2

PLAIN_TEMPLATE = """\
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""
"""For engines without a template: lines of "role: content"."""

MAX_RENDERED_CHARS = 32 << 20
_RESERVED = frozenset({"messages", "add_generation_prompt", "tools"})


class ChatTemplate:
    """A compiled chat template. Rendering is safe from several threads.

    Args:
        source: Jinja source.
        special_tokens: `bos_token`, ... as templates name them.
        max_chars: bound on the rendered text, in characters.
        now: the clock behind `strftime_now`.

    Raises:
        ConfigError: the source is not a template.
        MissingExtraError: `jinja2` is not installed.
    """

    def __init__(
        self,
        source: str = PLAIN_TEMPLATE,
        special_tokens: Mapping[str, str] | None = None,
        *,
        max_chars: int = MAX_RENDERED_CHARS,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._template = _compile(source)
        self.knows_tools = "tools" in _variables(source)
        """Whether it says anything of tools."""
        self.tool_form = form_of(source) if self.knows_tools else None
        """The form in which it has tools called, as far as that can be told; see `tool_calls`."""
        self._globals: dict[str, Any] = {
            **(special_tokens or {}),
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(form),
        }
        self._max_chars = max_chars

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for these messages.

        Args:
            messages: OpenAI's form; `content` a string or a list of text parts, which are joined by newlines.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: end right after the last message's content, so that the model continues it.
            tools: OpenAI's form: {"type": "function", "function": {"name": ..., ...}}.
            variables: further names for the template (`chat_template_kwargs`).

        Raises:
            InvalidRequestError: a message is wrong (`param` names it), the template refuses the messages, or the
                result is too long.
            UnsupportedOptionError: a message has a part or field that is not text; or tools come into it, and the
                template knows none.
        """
        if tools and not self.knows_tools:
            raise UnsupportedOptionError("tools are not supported: this model's chat template has none", param="tools")
        chat = checked_messages(messages, tools=self.knows_tools)
        marker = ""
        if continue_final_message:
            if add_generation_prompt:
                what = "continue_final_message and add_generation_prompt exclude each other"
                raise InvalidRequestError(what, param="continue_final_message")
            # Found again in the result even where the template trims, splits or repeats the content.
            marker = _marker(chat)
            chat[-1]["content"] += marker
        clash = _RESERVED.intersection(variables or {})
        if clash:
            what = f"chat_template_kwargs must not set {', '.join(sorted(clash))}"
            raise InvalidRequestError(what, param="chat_template_kwargs")
        text = self._run({**self._globals, **(variables or {}), "messages": chat}, add_generation_prompt, tools)
        if not marker:
            return text
        cut = text.rfind(marker)
        if cut < 0:
            what = "the chat template does not print the last message, so it cannot be continued"
            raise InvalidRequestError(what, param="continue_final_message")
        return text[:cut].replace(marker, "")

    def _run(
        self, context: dict[str, Any], add_generation_prompt: bool, tools: Sequence[Mapping[str, Any]] | None
    ) -> str:
        if self.knows_tools:
            context["tools"] = [dict(tool) for tool in tools] if tools else None
        pieces, size = [], 0
        try:
            for piece in self._template.generate(context, add_generation_prompt=add_generation_prompt):
                size += len(piece)
                if size > self._max_chars:
                    raise _Refused(f"the messages make a prompt of more than {self._max_chars} characters")
                pieces.append(piece)
        except _Refused as err:
            raise InvalidRequestError(str(err), param="messages") from None
        except Exception as err:  # a template is foreign code: it may raise anything on messages it did not foresee
            what = f"the model's chat template cannot render these messages: {type(err).__name__}: {err}"
            raise InvalidRequestError(what, param="messages") from err
        return "".join(pieces)


def load_chat_template(model_dir: str | Path | None) -> ChatTemplate | None:
    """The template of a model directory: `chat_template.jinja`, else that of `tokenizer_config.json`.

    Without a directory the plain one; None if the directory has no template, as for base models.

    Raises:
        ConfigError: a file cannot be read or is not a template.
        MissingExtraError: `jinja2` is not installed.
    """
    if model_dir is None:
        return ChatTemplate()
    config = read_tokenizer_config(Path(model_dir))
    path = Path(model_dir) / "chat_template.jinja"
    source: str | None
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        source, path = config.default_template(), Path(model_dir) / "tokenizer_config.json"
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path} cannot be read: {err}") from err
    if source is None:
        return None
    try:
        return ChatTemplate(source, config.special_tokens())
    except MissingExtraError:
        raise
    except ConfigError as err:
        raise ConfigError(f"{path}: {err.message}") from err


def _marker(chat: list[dict[str, Any]]) -> str:
    """Text that none of the messages contains: a private-use character, repeated as often as that takes."""
    mark = "\ue0c7"
    while any(mark in message["content"] for message in chat):
        mark += "\ue0c7"
    return f"{mark}\ue0c8"


class _Refused(Exception):
    """The template itself, or a bound, refuses the messages; the text is for the caller."""


def _raise_exception(message: str) -> None:
    raise _Refused(f"the model's chat template refuses these messages: {message}")


def _compile(source: str) -> jinja2.Template:
    env = _environment()
    import jinja2

    try:
        return env.from_string(source)
    except jinja2.TemplateSyntaxError as err:
        raise ConfigError(f"the chat template is not valid Jinja: line {err.lineno}: {err.message}") from err


def _variables(source: str) -> set[str]:
    """The names that a template looks up."""
    from jinja2 import meta

    return meta.find_undeclared_variables(_environment().parse(source))


@cache
def _environment() -> jinja2.Environment:
    """The environment that all templates share; built on first use, since it imports jinja2."""
    try:
        from jinja2 import nodes
        from jinja2.ext import Extension
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingExtraError("rendering chat templates", "text") from None

    class Generation(Extension):
        """`{% generation %} ... {% endgeneration %}` prints what is inside."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        """The sandbox bounds `range`; this bounds what `*` and `**` can make."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                raise _Refused("the model's chat template raises to a power, which is not allowed")
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and len(many) * times > MAX_RENDERED_CHARS:
                    raise _Refused("the model's chat template repeats a text too often")
            return super().call_binop(context, operator, left, right)

    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = _tojson
    return env


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: jinja2's own filter escapes `<`, `>`, `&` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
