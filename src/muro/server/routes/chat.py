"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muro.llm.logprobs import Position
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.llm.words import ArgumentsParser, ToolParser, Words, list_parser
from muro.server.routes.generation import Head, UsageField
from muro.server.routes.tools import Calls
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
from muro.server.schemas.tools import NamedTool
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
        if (
            request.calls_tools
            and request.tool_choice == "auto"
            and self._words.template is not None
            and self._words.template.knows_tools
        ):
            self._words.tool_parser(())  # refuses what could not be read
        text = await self._words.render_async(
            request.messages,
            size,
            add_generation_prompt=request.add_generation_prompt and not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            tools=[msgspec.to_builtins(tool) for tool in request.tools],
            variables=request.chat_template_kwargs,
        )
        return [await self._words.encode_async(text, add_special=False)]  # the template writes the special tokens

    def form(self, head: Head, request: ChatCompletionRequest, prompts: Sequence[list[int]]) -> ChatForm:
        return ChatForm(head, request, self._words)


class ChatForm:
    """See `generation.Form`."""

    waits_for_prompt = False

    def __init__(self, head: Head, request: ChatCompletionRequest, words: Words) -> None:
        self._head = (f"chatcmpl-{head.request_id}", head.created, head.model)
        self._request = request
        self._words = words
        self._names = frozenset(tool.function.name for tool in request.tools)
        self._calls: dict[int, Calls] = {}
        self.plain = not request.logprobs and not request.calls_tools

    def opening(self, index: int, choices: Sequence[Choice], usage: UsageField) -> msgspec.Struct:
        return ChatCompletionChunk(*self._head, [ChunkChoice(index, Delta(role="assistant", content=""))], usage)

    def chunk(self, piece: Piece, usage: UsageField) -> msgspec.Struct | None:
        reason, said = piece.finish_reason, self._logprobs(piece.logprobs)
        choice = ChunkChoice(piece.index, Delta(content=piece.text), reason, logprobs=said)
        if self._request.calls_tools:
            calls = self._calls_of(piece.index)
            delta = calls.delta(piece.text, last=reason is not None)
            if delta is None and said is None:
                return None
            choice.delta, choice.finish_reason = delta or Delta(), calls.finish_reason(reason)
        if reason is not None:
            choice.stop_reason = piece.stop_reason
        return ChatCompletionChunk(*self._head, [choice], usage)

    def closing(self, usage: Usage) -> msgspec.Struct:
        return ChatCompletionChunk(*self._head, [], usage)

    def whole(self, texts: Sequence[str], choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        listed = [self._choice(text, choice) for text, choice in zip(texts, choices, strict=True)]
        answer = ChatCompletion(*self._head, listed, usage)
        if self._request.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(choices[0].prompt_logprobs or ())
        return answer

    def _choice(self, text: str, choice: Choice) -> ChatChoice:
        message, reason = ChatMessage(text), choice.finish_reason
        if self._request.calls_tools:
            calls = self._calls_of(choice.index)
            message, reason = calls.message(text), calls.finish_reason(reason)
        return ChatChoice(choice.index, message, reason, choice.stop_reason, self._logprobs(choice.logprobs))

    def _calls_of(self, index: int) -> Calls:
        if index not in self._calls:
            self._calls[index] = Calls(self._parser(), several=self._request.parallel_tool_calls)
        return self._calls[index]

    def _parser(self) -> ToolParser:
        choice = self._request.tool_choice
        if isinstance(choice, NamedTool):
            return ArgumentsParser(choice.function.name)
        return list_parser(self._names) if choice == "required" else self._words.tool_parser(self._names)

    def _logprobs(self, positions: Sequence[Position] | None) -> ChatLogprobs | None:
        request = self._request
        if positions is None or not request.logprobs:
            return None
        by_id = request.return_tokens_as_token_ids
        return chat_logprobs(positions, request.top_logprobs, self._words.spelling, by_id=by_id)
