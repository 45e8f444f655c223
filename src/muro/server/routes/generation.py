"""What completions and chat have in common: from the pieces of a generation to one answer, or to events."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from muro.errors import MuroError
from muro.llm.generation import Generation
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice, check_length
from muro.server import sse
from muro.server.errors import reply_to
from muro.server.exchange import Exchange, GoneError
from muro.server.schemas.request import GenerationOptions
from muro.server.schemas.usage import Usage
from muro.server.service import Service
from muro.wire.request import SamplingParams

log = logging.getLogger(__name__)

UsageField = Usage | msgspec.UnsetType | None


class Form(Protocol):
    """How a route words its answer."""

    def opening(self, index: int, usage: UsageField) -> msgspec.Struct | None:
        """The chunk before the first text of a choice, if there is one."""

    def chunk(self, piece: Piece, usage: UsageField) -> msgspec.Struct:
        """The next piece of a choice."""

    def closing(self, usage: Usage) -> msgspec.Struct:
        """The chunk after all choices, with the usage."""

    def whole(self, texts: Sequence[str], choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        """Everything at once."""


async def generate(
    exchange: Exchange,
    service: Service,
    prompts: Sequence[list[int]],
    options: GenerationOptions,
    params: SamplingParams,
    asked: int | None,
    form: Form,
) -> None:
    """Generate and answer. `asked`: how many tokens the caller asked for in so many words.

    Raises RequestError and EngineDeadError as long as nothing was answered.
    """
    for prompt in prompts:
        check_length(len(prompt), service.llm.words.max_model_len, asked)
    generation = service.llm.submit(exchange.request_id, prompts, params, began=exchange.began)
    try:
        if options.stream:
            await _stream(exchange, generation, options, form)
        else:
            texts: list[list[str]] = [[] for _ in generation.choices]
            async for piece in generation:
                texts[piece.index].append(piece.text)
            answer = form.whole(["".join(text) for text in texts], generation.choices, usage_of(generation))
            await exchange.reply_json(200, answer)
    finally:
        await generation.aclose()


def usage_of(generation: Generation) -> Usage:
    """Tokens so far."""
    usage = generation.usage()
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens)


async def _stream(exchange: Exchange, generation: Generation, options: GenerationOptions, form: Form) -> None:
    wanted = options.stream_options
    include = wanted is not None and wanted.include_usage
    every = include and wanted is not None and wanted.continuous_usage_stats
    try:
        if every:
            await _detailed_events(exchange, generation, form)
        else:
            await _events(exchange, generation, form, None if include else msgspec.UNSET)
    except Exception as error:
        # Before the first event the error gets a status of its own; afterwards it is the last event.
        if not exchange.started or isinstance(error, GoneError):
            raise
        if not isinstance(error, MuroError):
            log.exception("request %s failed", exchange.request_id)
        await exchange.end(sse.event(reply_to(error).body) + sse.DONE)
        return
    await exchange.end((sse.event(form.closing(usage_of(generation))) if include else b"") + sse.DONE)


async def _events(exchange: Exchange, generation: Generation, form: Form, usage: UsageField) -> None:
    """One event per piece; of an event in the middle only its text is encoded."""
    encoders: dict[int, sse.TextEvents] = {}
    send = exchange.stream
    async for piece in generation:
        if piece.finish_reason is None and not piece.text:
            continue
        data = b""
        encode = encoders.get(piece.index)
        if encode is None:
            data = _opening(form, piece.index, usage)
            encode = encoders[piece.index] = _encoder(form, piece.index, usage)
        if piece.finish_reason is None:
            data += encode(piece.text)
        else:
            data += sse.event(form.chunk(piece, usage))
        await send(data)


async def _detailed_events(exchange: Exchange, generation: Generation, form: Form) -> None:
    """The same with the usage so far in every event."""
    opened: set[int] = set()
    async for piece in generation:
        if piece.finish_reason is None and not piece.text:
            continue
        usage = usage_of(generation)
        data = b"" if piece.index in opened else _opening(form, piece.index, usage)
        opened.add(piece.index)
        await exchange.stream(data + sse.event(form.chunk(piece, usage)))


def _opening(form: Form, index: int, usage: UsageField) -> bytes:
    opening = form.opening(index, usage)
    return b"" if opening is None else sse.event(opening)


def _encoder(form: Form, index: int, usage: UsageField) -> sse.TextEvents:
    return sse.TextEvents(lambda text: form.chunk(Piece(index, text, []), usage))
