"""From the head of a generating request to its answer: refuse early, read, tokenise, join those that wait, generate.

The order is the point: whatever can be refused is refused before the next, costlier thing is done, and each stage has
a bound in memory or in time. A caller who leaves ends it at any stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from muro.errors import InternalError, InvalidRequestError, MuroError
from muro.llm.pipeline import Standing, check_length
from muro.server.admission import Ticket
from muro.server.deadlines import HEADER, Deadlines, parse_timeouts
from muro.server.exchange import BodyBounds, Exchange, GoneError
from muro.server.offers import check_ids, check_offered
from muro.server.routes.generation import Form, Head, Job, generate
from muro.server.schemas.request import GenerationOptions, decode_request, sampling_params
from muro.server.service import Service
from muro.wire.frames import MAX_RANK
from muro.wire.request import QUEUE_TIMEOUT

R = TypeVar("R", bound=GenerationOptions)


class Dialect(Protocol[R]):
    """What is different between the routes that generate."""

    @property
    def request_type(self) -> type[R]:
        """The body."""

    @property
    def bounds(self) -> BodyBounds:
        """Of the body."""

    def asked(self, request: R) -> int | None:
        """How many tokens the caller asked for in so many words."""

    def most(self, request: R) -> int | None:
        """How many tokens there may be; None: up to the model's length."""

    async def prompts(self, request: R, size: int) -> list[list[int]]:
        """Token ids of each prompt; `size` of the body in bytes."""

    def form(self, head: Head, request: R, prompts: Sequence[list[int]]) -> Form:
        """How the answer is worded."""


class Work(Protocol):
    """What is done for a kind of request that the engine has to work on."""

    @property
    def bounds(self) -> BodyBounds:
        """Of the body."""

    async def answer(self, exchange: Exchange, body: bytes, ticket: Ticket, deadlines: Deadlines) -> str:
        """Answer; gives how it ended: "done", or the code of an error that was sent in a stream."""


class WorkRoute:
    """`POST` of one kind of work."""

    def __init__(self, service: Service, work: Work) -> None:
        self._service = service
        self._work = work

    async def __call__(self, exchange: Exchange) -> None:
        outcome = "left"
        try:
            outcome = await self._serve(exchange)
        except MuroError as error:
            outcome = error.code
            raise
        except Exception as error:
            if not isinstance(error, GoneError):
                outcome = InternalError.code
            raise
        finally:
            self._service.outcomes[outcome] += 1

    async def _serve(self, exchange: Exchange) -> str:
        """Gives how it ended, unless it raises: "done", "left", or the code of an error that was sent in a stream."""
        service, outcome = self._service, "left"
        service.check_open()
        deadlines = Deadlines(service.limits, exchange.began)
        if (header := exchange.header(_HEADER)) is not None:
            deadlines.ask(parse_timeouts(header))
        with service.admission.enter() as ticket:
            async with deadlines.enforced():
                body = await exchange.body(self._work.bounds, ticket.hold)
            async with exchange.while_connected():
                with service.at_work():
                    outcome = await self._work.answer(exchange, body, ticket, deadlines)
        return outcome


class GenerationWork(Generic[R]):
    """See `Work`: what one dialect asks to be generated."""

    def __init__(self, service: Service, dialect: Dialect[R]) -> None:
        self._service = service
        self._dialect = dialect

    @property
    def bounds(self) -> BodyBounds:
        return self._dialect.bounds

    async def answer(self, exchange: Exchange, body: bytes, ticket: Ticket, deadlines: Deadlines) -> str:
        service, dialect = self._service, self._dialect
        rank = asked_rank(exchange.header(_RANK), lambda: [engine.rank for engine in self._service.llm.engines()])
        async with deadlines.enforced(), service.reading(len(body)):
            request = decode_request(body, dialect.request_type)
            if request.timeouts is not None:
                deadlines.ask(request.timeouts)
            model = service.check_model(request.model)
            params = sampling_params(request, dialect.most(request), service.llm.words.default_params())
            if (queue := deadlines.queue) is not None:
                extra = {**(params.extra_args or {}), QUEUE_TIMEOUT: queue}
                params = msgspec.structs.replace(params, extra_args=extra)
            size = len(body)
            del body
            prompts = await dialect.prompts(request, size)
        ticket.hold(0)
        for prompt in prompts:
            check_length(len(prompt), service.llm.words.max_model_len, dialect.asked(request))
        standing = Standing(request.priority, request.cache_salt, rank)
        with structure_named(request):
            check_offered(params, standing, service.llm.engines)
            check_ids(prompts, params, service.llm.words.tokenizer.vocab_size, service.llm.engines)
            async with deadlines.enforced():
                await service.grammars.check(params.structured_outputs, service.llm.engines)
            ticket.queue(len(prompts) * request.n, sum(map(len, prompts)) * request.n)
            form = dialect.form(Head(exchange.request_id, service.created_now(), model), request, prompts)
            return await generate(exchange, service, Job(prompts, request, params, standing, ticket, deadlines), form)


@contextlib.contextmanager
def structure_named(request: GenerationOptions) -> Iterator[None]:
    """What is refused about the structure of the output is refused by the name of the option that asked for it."""
    try:
        yield
    except InvalidRequestError as error:
        structure = request.structure()
        if structure is None or "structured_outputs" not in error.message:
            raise
        message = error.message.replace("structured_outputs", structure.option, 1)
        raise type(error)(message, param=structure.option) from error


def asked_rank(text: str | None, ranks: Callable[[], Sequence[int]]) -> int | None:
    """The engine that the header `X-data-parallel-rank` names. Raises InvalidRequestError for what is no number.

    `ranks` gives those that there are, to be told.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= MAX_RANK):
        known = ", ".join(map(str, ranks()))
        raise InvalidRequestError(f"{RANK} is {text[:40]!r}; it is the number of an engine: {known}", param=RANK)
    return int(text)


_HEADER = HEADER.lower().encode()
RANK = "X-data-parallel-rank"
_RANK = RANK.lower().encode()
