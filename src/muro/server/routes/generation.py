"""What completions and chat have in common: from the pieces of a generation to one answer, or to events."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import msgspec

from muro.errors import MuroError
from muro.llm.generation import Generation
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice, Standing
from muro.server import sse
from muro.server.admission import Ticket
from muro.server.deadlines import Deadlines
from muro.server.errors import reply_to
from muro.server.exchange import Exchange, GoneError
from muro.server.schemas.request import GenerationOptions
from muro.server.schemas.usage import PromptTokensDetails, Usage
from muro.server.service import Service
from muro.wire.request import SamplingParams

log = logging.getLogger(__name__)

UsageField = Usage | msgspec.UnsetType | None


class Form(Protocol):
    """How a route words its answer."""

    @property
    def plain(self) -> bool:
        """Whether events in the middle of a choice differ in their text alone."""

    @property
    def waits_for_prompt(self) -> bool:
        """Whether a choice must not be opened before the first one of its prompt has told of the prompt."""

    def opening(self, index: int, choices: Sequence[Choice], usage: UsageField) -> msgspec.Struct | None:
        """The chunk before the first text of a choice, if there is one."""

    def chunk(self, piece: Piece, usage: UsageField) -> msgspec.Struct | None:
        """The next piece of a choice; None if there is nothing to say yet."""

    def closing(self, usage: Usage) -> msgspec.Struct:
        """The chunk after all choices, with the usage."""

    def whole(self, texts: Sequence[str], choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        """Everything at once."""


class Head(msgspec.Struct, frozen=True):
    """With what every answer begins: the caller's id, the time in Unix seconds, the model's name."""

    request_id: str
    created: int
    model: str


class Job(msgspec.Struct, frozen=True):
    """What is to be generated, and within which bounds."""

    prompts: Sequence[list[int]]
    options: GenerationOptions
    params: SamplingParams
    standing: Standing
    ticket: Ticket
    deadlines: Deadlines


async def generate(exchange: Exchange, service: Service, job: Job, form: Form) -> str:
    """Generate and answer; gives "done", or the code of the error that ended a stream.

    Raises RequestError and EngineDeadError as long as nothing was answered.
    """
    generation = service.llm.submit(
        exchange.request_id, job.prompts, job.params, began=exchange.began, standing=job.standing
    )
    pieces = Pieces(generation, job.ticket, job.deadlines)
    try:
        if job.options.stream:
            return await _stream(exchange, pieces, job, form)
        else:
            texts: list[list[str]] = [[] for _ in generation.choices]
            async with job.deadlines.enforced():
                async for piece in pieces:
                    texts[piece.index].append(piece.text)
                answer = form.whole(["".join(text) for text in texts], generation.choices, usage_of(generation, job))
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


def usage_of(generation: Generation, job: Job) -> Usage:
    """Tokens so far. Where none are asked for, the one that an engine must make does not count."""
    usage = generation.usage()
    made = 0 if job.options.max_tokens == 0 else usage.completion_tokens
    written = Usage(usage.prompt_tokens, made, usage.prompt_tokens + made)
    if usage.cached_tokens is not None:
        written.prompt_tokens_details = PromptTokensDetails(usage.cached_tokens)
    return written


async def _stream(exchange: Exchange, pieces: Pieces, job: Job, form: Form) -> str:
    wanted = job.options.stream_options
    include = wanted is not None and wanted.include_usage
    every = include and wanted is not None and wanted.continuous_usage_stats
    plainly = None if include else msgspec.UNSET
    try:
        async with job.deadlines.enforced():
            if every or not form.plain:
                usage = (lambda: usage_of(pieces.generation, job)) if every else (lambda: plainly)
                await _detailed_events(exchange, pieces, form, usage)
            else:
                await _events(exchange, pieces, form, plainly)
    except Exception as error:
        # Before the first event the error gets a status of its own; afterwards it is the last event.
        if not exchange.started or isinstance(error, GoneError):
            raise
        if not isinstance(error, MuroError):
            log.exception("request %s failed", exchange.request_id)
        reply = reply_to(error)
        await exchange.end(sse.event(reply.body) + sse.DONE)
        return reply.body.error.code or "error"
    await exchange.end((sse.event(form.closing(usage_of(pieces.generation, job))) if include else b"") + sse.DONE)
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
            data = _written(form.opening(piece.index, pieces.generation.choices, usage))
            encode = encoders[piece.index] = _encoder(form, piece.index, usage)
        if piece.finish_reason is None:
            data += encode(piece.text)
        else:
            data += _written(form.chunk(piece, usage))
        await send(data)


async def _detailed_events(exchange: Exchange, pieces: Pieces, form: Form, usage: Callable[[], UsageField]) -> None:
    """The same where events differ in more: in the usage so far, in log-probabilities, in what they are about."""
    opened: set[int] = set()
    choices = pieces.generation.choices
    async for piece in _prompts_first(pieces) if form.waits_for_prompt else pieces:
        if piece.finish_reason is None and not piece.text and not piece.logprobs:
            continue
        used, data = usage(), b""
        if piece.index not in opened:
            opened.add(piece.index)
            data = _written(form.opening(piece.index, choices, used))
        if data := data + _written(form.chunk(piece, used)):
            await exchange.stream(data)


async def _prompts_first(pieces: Pieces) -> AsyncIterator[Piece]:
    """Pieces in their order, but none of a choice before the first one of its prompt has begun."""
    each = len(pieces.generation.choices) // len(pieces.generation.prompts)
    held: dict[int, list[Piece]] = {first: [] for first in range(0, len(pieces.generation.choices), each)}
    async for piece in pieces:
        first = piece.index - piece.index % each
        if piece.index != first and first in held:
            held[first].append(piece)
            continue
        yield piece
        for waiting in held.pop(first, ()):
            yield waiting


def _written(chunk: msgspec.Struct | None) -> bytes:
    return b"" if chunk is None else sse.event(chunk)


def _encoder(form: Form, index: int, usage: UsageField) -> sse.TextEvents:
    def chunk(text: str) -> msgspec.Struct:
        made = form.chunk(Piece(index, text, []), usage)
        assert made is not None  # noqa: S101 - a plain form has a chunk for each text
        return made

    return sse.TextEvents(chunk)
