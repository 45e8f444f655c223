"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.server.exchange import Exchange
from muro.server.routes.generation import UsageField, generate
from muro.server.schemas.completions import (
    DEFAULT_MAX_TOKENS,
    Completion,
    CompletionChoice,
    CompletionRequest,
    prompts_of,
)
from muro.server.schemas.request import decode_request, sampling_params
from muro.server.schemas.usage import Usage
from muro.server.service import Service


class CompletionsRoute:
    """Continues prompts."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        service = self._service
        service.check_open()
        body = await exchange.body(service.max_body_bytes)
        async with exchange.while_connected():
            with service.at_work():
                request = decode_request(body, CompletionRequest)
                model = service.check_model(request.model)
                most = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
                params = sampling_params(request, most, service.llm.words.default_params())
                add_special = request.add_special_tokens
                words = service.llm.words
                prompts = [await words.encode_async(p, add_special=add_special) for p in prompts_of(request)]
                form = CompletionForm(f"cmpl-{exchange.request_id}", service.created_now(), model)
                await generate(exchange, service, prompts, request, params, request.max_tokens, form)


class CompletionForm:
    """See `generation.Form`."""

    def __init__(self, answer_id: str, created: int, model: str) -> None:
        self._head = (answer_id, created, model)

    def opening(self, index: int, usage: UsageField) -> None:
        return None

    def chunk(self, piece: Piece, usage: UsageField) -> msgspec.Struct:
        choice = CompletionChoice(piece.index, piece.text, piece.finish_reason, piece.stop_reason)
        return Completion(*self._head, [choice], usage)

    def closing(self, usage: Usage) -> msgspec.Struct:
        return Completion(*self._head, [], usage)

    def whole(self, texts: Sequence[str], choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        listed = [
            CompletionChoice(choice.index, text, choice.finish_reason, choice.stop_reason)
            for text, choice in zip(texts, choices, strict=True)
        ]
        return Completion(*self._head, listed, usage)
