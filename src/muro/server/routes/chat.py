"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.server.routes.generation import UsageField
from muro.server.schemas.chat import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatMessage,
    ChunkChoice,
    Delta,
    max_tokens_of,
)
from muro.server.schemas.usage import Usage
from muro.server.service import Service


class ChatDialect:
    """See `reception.Dialect`."""

    request_type = ChatCompletionRequest

    def __init__(self, service: Service) -> None:
        self._words = service.llm.words
        self.bounds = service.chat_body_bounds

    def asked(self, request: ChatCompletionRequest) -> int | None:
        return max_tokens_of(request)

    most = asked

    async def prompts(self, request: ChatCompletionRequest, size: int) -> list[list[int]]:
        text = await self._words.render_async(
            request.messages,
            size,
            add_generation_prompt=request.add_generation_prompt and not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            variables=request.chat_template_kwargs,
        )
        return [await self._words.encode_async(text, add_special=False)]  # the template writes the special tokens

    def form(self, request_id: str, created: int, model: str) -> ChatForm:
        return ChatForm(f"chatcmpl-{request_id}", created, model)


class ChatForm:
    """See `generation.Form`."""

    def __init__(self, answer_id: str, created: int, model: str) -> None:
        self._head = (answer_id, created, model)

    def opening(self, index: int, usage: UsageField) -> msgspec.Struct:
        return ChatCompletionChunk(*self._head, [ChunkChoice(index, Delta(role="assistant", content=""))], usage)

    def chunk(self, piece: Piece, usage: UsageField) -> msgspec.Struct:
        choice = ChunkChoice(piece.index, Delta(content=piece.text), piece.finish_reason)
        if piece.finish_reason is not None:
            choice.stop_reason = piece.stop_reason
        return ChatCompletionChunk(*self._head, [choice], usage)

    def closing(self, usage: Usage) -> msgspec.Struct:
        return ChatCompletionChunk(*self._head, [], usage)

    def whole(self, texts: Sequence[str], choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        listed = [
            ChatChoice(choice.index, ChatMessage(text), choice.finish_reason, choice.stop_reason)
            for text, choice in zip(texts, choices, strict=True)
        ]
        return ChatCompletion(*self._head, listed, usage)
