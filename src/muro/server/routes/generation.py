"""What completions and chat have in common: from the pieces of a generation to one answer, or to events."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from muro.errors import MuroError
from muro.llm.generation import Generation
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.server import sse
from muro.server.admission import Ticket
from muro.server.deadlines import Deadlines
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


class Job(msgspec.Struct, frozen=True):
    """What is to be generated, and within which bounds."""

    prompts: Sequence[list[int]]
    options: GenerationOptions
    params: SamplingParams
    ticket: Ticket
    deadlines: Deadlines


async def generate(exchange: Exchange, service: Service, job: Job, form: Form) -> str:
    """Generate and answer; gives "done", or the code of the error that ended a stream.

    Raises RequestError and EngineDeadError as long as nothing was answered.
    """
    generation = service.llm.submit(exchange.request_id, job.prompts, job.params, began=exchange.began)
    pieces = Pieces(generation, job.ticket, job.deadlines)
    try:
        if job.options.stream:
            return await _stream(exchange, pieces, job, form)
        else:
            texts: list[list[str]] = [[] for _ in generation.choices]
            async with job.deadlines.enforced():
                async for piece in pieces:
                    texts[piece.index].append(piece.text)
                answer = form.whole(["".join(text) for text in texts], generation.choices, usage_of(generation))
                await exchange.reply_json(200, answer)
            return "done"
    finally:
        await generation.aclose()


class Pieces:
    """The pieces of a generation; takes note of the first one of each choice."""

    def __init__(self, generation: Generation, ticket: Ticket, deadlines: Deadlines) -> None:
        self.generation = generation
        self._ticket = ticket
        self._deadlines = deadlines
        self._waiting = set(range(len(generation.choices)))

    def __aiter__(self) -> Pieces:
        return self

    async def __anext__(self) -> Piece:
        piece = await self.generation.__anext__()
        if self._waiting and piece.index in self._waiting:
            self._waiting.remove(piece.index)
            self._ticket.begin()
            self._deadlines.begin()
        return piece


def usage_of(generation: Generation) -> Usage:
    """Tokens so far."""
    usage = generation.usage()
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens)


async def _stream(exchange: Exchange, pieces: Pieces, job: Job, form: Form) -> str:
    wanted = job.options.stream_options
    include = wanted is not None and wanted.include_usage
    every = include and wanted is not None and wanted.continuous_usage_stats
    try:
        async with job.deadlines.enforced():
            if every:
                await _detailed_events(exchange, pieces, form)
            else:
                await _events(exchange, pieces, form, None if include else msgspec.UNSET)
    except Exception as error:
        # Before the first event the error gets a status of its own; afterwards it is the last event.
        if not exchange.started or isinstance(error, GoneError):
            raise
        if not isinstance(error, MuroError):
            log.exception("request %s failed", exchange.request_id)
        reply = reply_to(error)
        await exchange.end(sse.event(reply.body) + sse.DONE)
        return reply.body.error.code or "error"
    await exchange.end((sse.event(form.closing(usage_of(pieces.generation))) if include else b"") + sse.DONE)
    return "done"


async def _events(exchange: Exchange, pieces: Pieces, form: Form, usage: UsageField) -> None:
    """One event per piece; of an event in the middle only its text is encoded."""
    encoders: dict[int, sse.TextEvents] = {}
    send = exchange.stream
    async for piece in pieces:
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


async def _detailed_events(exchange: Exchange, pieces: Pieces, form: Form) -> None:
    """The same with the usage so far in every event."""
    opened: set[int] = set()
    async for piece in pieces:
        if piece.finish_reason is None and not piece.text:
            continue
        usage = usage_of(pieces.generation)
        data = b"" if piece.index in opened else _opening(form, piece.index, usage)
        opened.add(piece.index)
        await exchange.stream(data + sse.event(form.chunk(piece, usage)))


def _opening(form: Form, index: int, usage: UsageField) -> bytes:
    opening = form.opening(index, usage)
    return b"" if opening is None else sse.event(opening)


def _encoder(form: Form, index: int, usage: UsageField) -> sse.TextEvents:
    return sse.TextEvents(lambda text: form.chunk(Piece(index, text, []), usage))
