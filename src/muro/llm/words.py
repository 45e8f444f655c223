"""Everything that belongs to a model and is not its engine: names, tokenizer, chat template, length of its context."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from muro.config import ConnectConfig, EngineConfig, home
from muro.errors import ConfigError, InvalidRequestError, UnsupportedOptionError
from muro.llm import pipeline
from muro.llm.spelling import Spelling
from muro.models.pull import pulled
from muro.models.sampling import SamplingDefaults, read_sampling_defaults
from muro.text.call_reader import ToolCallPiece
from muro.text.chat import ChatTemplate, load_chat_template
from muro.text.tokenizer import Tokenizer, load_tokenizer
from muro.text.tool_calls import PARSERS, ArgumentsParser, ToolParser, list_parser
from muro.wire.request import SamplingParams

__all__ = [
    "ArgumentsParser",
    "ModelChoice",
    "Prompt",
    "ToolCallPiece",
    "ToolParser",
    "Words",
    "list_parser",
    "load_words",
    "make_choice",
]

INLINE_CHARS = 4096
"""Longer texts are tokenised in a thread: a hop there costs 0.1 ms, so many characters about 1 ms."""

MODEL_ENGINE = "openvino"
"""The built-in engine that runs a model directory."""
MODEL_ENGINES = (MODEL_ENGINE, "vllm")
"""Those that have an option `max_model_len`."""

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}; the latter with "cache_salt" if wanted: only
prompts with the same one share what the prefix cache holds."""


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served."""

    model: str | None = None
    """A model directory, or the name of a model that `muro pull` has fetched."""
    engine: str | None = None
    """None: the built-in one that runs models. An engine without a model gets a byte-level tokenizer."""
    options: dict[str, Any] = {}
    """Options of the engine."""
    tokenizer: str | None = None
    """Directory with the tokenizer, if it is not the model's."""
    chat_template: str | None = None
    """File with a chat template, if it is not the model's."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """Where sampling values come from that a request does not give: "auto" the model's own, "vllm" neutral ones."""
    tool_call_parser: str | None = None
    """The form in which the model calls tools, a name of `text.tool_calls`; None: as its chat template shows."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: as many as the engine takes."""

    def engine_config(self, template: EngineConfig | None = None) -> EngineConfig:
        """Settings for the engine's process, the rest as in `template`. Raises ConfigError if nothing is named."""
        if self.model is None and self.engine is None:
            raise ConfigError("name a model directory, or an engine that needs none, such as echo")
        engine = self.engine or MODEL_ENGINE
        options = dict(self.options)
        if engine in MODEL_ENGINES and self.max_model_len is not None:
            options.setdefault("max_model_len", self.max_model_len)
        directory = self.directory()
        model = None if directory is None else str(directory)
        return msgspec.structs.replace(template or EngineConfig(), engine=engine, model=model, options=options)

    def directory(self) -> Path | None:
        """The model's directory. Raises ConfigError if there is none of that name."""
        if self.model is None:
            return None
        directory = pulled(self.model, home()) or Path(self.model)
        if not directory.is_dir():
            advice = f"muro pull {self.model}" if self.model.startswith("hf:") else "muro pull demo, for the demo model"
            raise ConfigError(f"there is no model directory {self.model}; to fetch a model: {advice}")
        return directory.resolve()

    def sampling_defaults(self) -> SamplingDefaults:
        """How to sample where a caller says nothing. Raises ConfigError."""
        return read_sampling_defaults(self.directory()) if self.generation_config == "auto" else SamplingDefaults()

    def names(self) -> list[str]:
        """What callers may call the model, the best name first."""
        directory = self.directory()
        if directory is None or self.model is None:
            return [self.engine or MODEL_ENGINE]
        return list(dict.fromkeys([directory.name, self.model, str(directory)]))


def make_choice(model: str | None, settings: Mapping[str, Any]) -> ModelChoice:
    """What keyword arguments ask for. Raises ConfigError that names the wrong one."""
    fields = ModelChoice.__struct_fields__
    if unknown := settings.keys() - set(fields):
        what = f"there is no setting {', '.join(sorted(unknown))}; settings are {', '.join(sorted(fields))}"
        if engines := unknown & set(ConnectConfig.__struct_fields__):
            what += f"; of the engines and their number: connect=muro.ConnectConfig({sorted(engines)[0]}=...)"
        raise ConfigError(what)
    return ModelChoice(model=model, **settings)


class Words:
    """Turns prompts into token ids and checks their length.

    Args:
        tokenizer: the model's.
        template: the chat template, or None if the model has none.
        max_model_len: tokens of prompt and output together.
        defaults: how to sample where a caller says nothing.
        tool_form: the form of tool calls; None: as the template shows.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        max_model_len: int,
        defaults: SamplingDefaults | None = None,
        tool_form: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.max_model_len = max_model_len
        self.defaults = defaults or SamplingDefaults()
        self.spelling = Spelling(tokenizer)
        self._tool_form = tool_form or (template.tool_form if template else None)

    def default_params(self) -> SamplingParams:
        """Parameters for a caller who gives none: those that the model recommends."""
        recommended = self.defaults
        return SamplingParams(
            temperature=recommended.temperature,
            top_p=recommended.top_p,
            top_k=recommended.top_k,
            min_p=recommended.min_p,
        )

    def encode(self, prompt: str | Sequence[int], *, add_special: bool = True) -> list[int]:
        """Token ids of a prompt. Raises InvalidRequestError, PromptTooLongError."""
        if isinstance(prompt, str):
            # An absurd text costs nothing: its length is known before it is tokenised.
            pipeline.check_length(self.tokenizer.fewest_tokens(prompt), self.max_model_len)
            ids = self.tokenizer.encode(prompt, add_special=add_special)
        else:
            ids = list(prompt)
        if not ids:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        pipeline.check_length(len(ids), self.max_model_len)
        return ids

    async def encode_async(self, prompt: str | Sequence[int], *, add_special: bool = True) -> list[int]:
        """As `encode`, without holding up the event loop."""
        if not isinstance(prompt, str) or len(prompt) <= INLINE_CHARS:
            return self.encode(prompt, add_special=add_special)
        return await asyncio.to_thread(self.encode, prompt, add_special=add_special)

    def render(self, messages: Sequence[Mapping[str, Any]], **how: Any) -> str:
        """The prompt of a chat; `how` as for `ChatTemplate.render`. Raises InvalidRequestError."""
        if self.template is None:
            what = "this model has no chat template; use completions, or give one: --chat-template FILE"
            raise InvalidRequestError(what, param="messages")
        return self.template.render(messages, **how)

    def tool_parser(self, names: Collection[str]) -> ToolParser:
        """What reads calls of these tools from an answer. Raises UnsupportedOptionError if it is not known how."""
        if self._tool_form is None:
            what = "tools are not supported: in which form the model calls them is not known; see --tool-call-parser"
            raise UnsupportedOptionError(what, param="tools")
        return PARSERS[self._tool_form](names)

    async def render_async(self, messages: Sequence[Mapping[str, Any]], size: int, **how: Any) -> str:
        """As `render`, without holding up the event loop; `size` of the messages, about, in characters."""
        if size <= INLINE_CHARS:
            return self.render(messages, **how)
        return await asyncio.to_thread(self.render, messages, **how)


def load_words(choice: ModelChoice) -> tuple[Tokenizer, ChatTemplate | None]:
    """Read tokenizer and chat template. Raises ConfigError, MissingExtraError."""
    if choice.tool_call_parser is not None and choice.tool_call_parser not in PARSERS:
        what = f"there is no tool call parser {choice.tool_call_parser!r}; there are {', '.join(PARSERS)}"
        raise ConfigError(what)
    directory = Path(choice.tokenizer) if choice.tokenizer else choice.directory()
    tokenizer = load_tokenizer(directory)
    if choice.chat_template is None:
        return tokenizer, load_chat_template(directory)
    try:
        source = Path(choice.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template {choice.chat_template} cannot be read: {error}") from error
    return tokenizer, ChatTemplate(source, tokenizer.special_tokens)


def is_list(value: object) -> bool:
    """Whether it is a sequence of things, not of letters or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def split_prompt(prompt: Prompt) -> tuple[str | None, str | Sequence[int]]:
    """(text if it is text, text or token ids). Raises InvalidRequestError for any other form."""
    text: Any = prompt
    ids: Any = prompt
    if isinstance(prompt, Mapping):
        ids = prompt.get("prompt_token_ids")
        text = prompt.get("prompt") if ids is None else None
    if isinstance(text, str):
        return text, text
    if is_list(ids) and all(type(token) is int for token in ids):
        return None, ids
    raise InvalidRequestError(
        'a prompt is a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}', param="prompt"
    )


def cache_salt_of(prompt: Prompt) -> str | None:
    """The prompt's cache salt, if it has one. Raises InvalidRequestError."""
    salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise InvalidRequestError("cache_salt must be a text that is not empty", param="cache_salt")
    return salt


def effective_length(ready_lengths: Sequence[int], wanted: int | None) -> int:
    """Length of the context: what every engine takes, lowered to `wanted`. Raises ConfigError if that is more."""
    offered = min(ready_lengths, default=2**20)
    if wanted is not None and wanted > offered:
        raise ConfigError(f"max_model_len is {wanted}, but the engine takes {offered} tokens at most")
    return offered if wanted is None else wanted
