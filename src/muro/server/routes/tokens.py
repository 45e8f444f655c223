"""`POST /tokenize` and `POST /detokenize`. No engine is asked: they answer while one is busy, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from muro.llm.words import INLINE_CHARS
from muro.server.admission import Ticket
from muro.server.exchange import Exchange
from muro.server.schemas.request import decode_request
from muro.server.schemas.tokens import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from muro.server.service import Service

R = TypeVar("R", bound=TokenizeRequest | DetokenizeRequest)


class TextRoute(Generic[R]):
    """A route that turns a body into an answer; what it holds counts like the bodies of other requests."""

    def __init__(
        self, service: Service, kind: type[R], answer: Callable[[Service, R, int], Awaitable[msgspec.Struct]]
    ) -> None:
        self._service = service
        self._kind = kind
        self._answer = answer

    async def __call__(self, exchange: Exchange) -> None:
        service = self._service
        with Ticket(service.admission) as ticket:
            body = await exchange.body(service.body_bounds, ticket.hold)
            async with exchange.while_connected():
                async with service.reading(len(body)):
                    request = decode_request(body, self._kind)
                    service.check_model(request.model)
                    answer = await self._answer(service, request, len(body))
                await exchange.reply_json(200, answer)


async def tokenize(service: Service, request: TokenizeRequest, size: int) -> TokenizeResponse:
    """The tokens of a text or chat, however many; `size` of the body in bytes."""
    words = service.llm.words
    special = request.add_special_tokens
    if request.messages is not None:
        text = await words.render_async(
            request.messages,
            size,
            add_generation_prompt=request.add_generation_prompt and not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            tools=[msgspec.to_builtins(tool) for tool in request.tools],
            variables=request.chat_template_kwargs,
        )
        special = bool(special)
    else:
        text, special = request.prompt or "", special is not False

    def work() -> TokenizeResponse:
        tokenizer = words.tokenizer
        ids = tokenizer.encode(text, add_special=special)
        named = [tokenizer.token(token) for token in ids] if request.return_token_strs else None
        return TokenizeResponse(len(ids), words.max_model_len, ids, named)

    return await _aside(work, len(text))


async def detokenize(service: Service, request: DetokenizeRequest, size: int) -> DetokenizeResponse:
    """The text of tokens; those outside the vocabulary yield nothing."""
    tokenizer = service.llm.words.tokenizer
    text = await _aside(lambda: tokenizer.decode(request.tokens, skip_special=False), size)
    return DetokenizeResponse(text)


T = TypeVar("T")


async def _aside(work: Callable[[], T], size: int) -> T:
    """Do it here if it is little, else in a thread."""
    return work() if size <= INLINE_CHARS else await asyncio.to_thread(work)
