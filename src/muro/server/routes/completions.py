"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.server.routes.generation import UsageField
from muro.server.schemas.completions import (
    DEFAULT_MAX_TOKENS,
    Completion,
    CompletionChoice,
    CompletionRequest,
    prompts_of,
)
from muro.server.schemas.usage import Usage
from muro.server.service import Service


class CompletionDialect:
    """See `reception.Dialect`."""

    request_type = CompletionRequest

    def __init__(self, service: Service) -> None:
        self._words = service.llm.words
        self.bounds = service.body_bounds

    def asked(self, request: CompletionRequest) -> int | None:
        return request.max_tokens

    def most(self, request: CompletionRequest) -> int | None:
        return DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens

    async def prompts(self, request: CompletionRequest, size: int) -> list[list[int]]:
        add_special = request.add_special_tokens
        return [await self._words.encode_async(p, add_special=add_special) for p in prompts_of(request)]

    def form(self, request_id: str, created: int, model: str) -> CompletionForm:
        return CompletionForm(f"cmpl-{request_id}", created, model)


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
