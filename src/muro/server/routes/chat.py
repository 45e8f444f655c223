"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muro.llm.logprobs import Position
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.llm.spelling import Spelling
from muro.server.routes.generation import Head, UsageField
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
from muro.server.schemas.logprobs import ChatLogprobs, chat_logprobs, prompt_logprobs
from muro.server.schemas.usage import Usage
from muro.server.service import Service


class ChatDialect:
    """See `reception.Dialect`."""

    request_type = ChatCompletionRequest

    def __init__(self, service: Service) -> None:
        self._words = service.llm.words
        self._spelling = self._words.spelling
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

    def form(self, head: Head, request: ChatCompletionRequest, prompts: Sequence[list[int]]) -> ChatForm:
        return ChatForm(head, request, self._spelling)


class ChatForm:
    """See `generation.Form`."""

    waits_for_prompt = False

    def __init__(self, head: Head, request: ChatCompletionRequest, spelling: Spelling) -> None:
        self._head = (f"chatcmpl-{head.request_id}", head.created, head.model)
        self._request = request
        self._spelling = spelling
        self.plain = not request.logprobs

    def opening(self, index: int, choices: Sequence[Choice], usage: UsageField) -> msgspec.Struct:
        return ChatCompletionChunk(*self._head, [ChunkChoice(index, Delta(role="assistant", content=""))], usage)

    def chunk(self, piece: Piece, usage: UsageField) -> msgspec.Struct:
        choice = ChunkChoice(piece.index, Delta(content=piece.text), piece.finish_reason)
        if piece.finish_reason is not None:
            choice.stop_reason = piece.stop_reason
        choice.logprobs = self._logprobs(piece.logprobs)
        return ChatCompletionChunk(*self._head, [choice], usage)

    def closing(self, usage: Usage) -> msgspec.Struct:
        return ChatCompletionChunk(*self._head, [], usage)

    def whole(self, texts: Sequence[str], choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        listed = [
            ChatChoice(
                choice.index,
                ChatMessage(text),
                choice.finish_reason,
                choice.stop_reason,
                self._logprobs(choice.logprobs),
            )
            for text, choice in zip(texts, choices, strict=True)
        ]
        answer = ChatCompletion(*self._head, listed, usage)
        if self._request.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(choices[0].prompt_logprobs or ())
        return answer

    def _logprobs(self, positions: Sequence[Position] | None) -> ChatLogprobs | None:
        request = self._request
        if positions is None or not request.logprobs:
            return None
        return chat_logprobs(positions, request.top_logprobs, self._spelling, by_id=request.return_tokens_as_token_ids)
