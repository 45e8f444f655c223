"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from muro.llm.logprobs import Position
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.llm.spelling import Offsets, Spelling
from muro.server.routes.generation import Head, UsageField
from muro.server.schemas.completions import (
    DEFAULT_MAX_TOKENS,
    Completion,
    CompletionChoice,
    CompletionRequest,
    prompts_of,
)
from muro.server.schemas.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    completion_logprobs,
    joined_logprobs,
    named_by_id,
    prompt_logprobs,
)
from muro.server.schemas.usage import Usage
from muro.server.service import Service


class CompletionDialect:
    """See `reception.Dialect`."""

    request_type = CompletionRequest

    def __init__(self, service: Service) -> None:
        self._words = service.llm.words
        self._spelling = self._words.spelling
        self.bounds = service.body_bounds

    def asked(self, request: CompletionRequest) -> int | None:
        return request.max_tokens

    def most(self, request: CompletionRequest) -> int | None:
        # No engine makes no token at all; what nobody asked for is not shown.
        return DEFAULT_MAX_TOKENS if request.max_tokens is None else max(1, request.max_tokens)

    async def prompts(self, request: CompletionRequest, size: int) -> list[list[int]]:
        add_special = request.add_special_tokens
        return [await self._words.encode_async(p, add_special=add_special) for p in prompts_of(request)]

    def form(self, head: Head, request: CompletionRequest, prompts: Sequence[list[int]]) -> CompletionForm:
        return CompletionForm(head, request, prompts, self._spelling)


class CompletionForm:
    """See `generation.Form`."""

    def __init__(
        self, head: Head, request: CompletionRequest, prompts: Sequence[list[int]], spelling: Spelling
    ) -> None:
        self._head = (f"cmpl-{head.request_id}", head.created, head.model)
        self._request = request
        self._prompts = prompts
        self._spelling = spelling
        self._echoed = [self._text_of(*prompt) for prompt in zip(prompts_of(request), prompts, strict=True)]
        self._name: Callable[[int], str] = spelling.in_completion
        if request.return_tokens_as_token_ids:
            self._name = named_by_id
        self._offsets: dict[int, Offsets] = {}
        self.plain = request.top is None and request.max_tokens != 0
        self.waits_for_prompt = request.echo and request.top is not None and request.n > 1

    def opening(self, index: int, choices: Sequence[Choice], usage: UsageField) -> msgspec.Struct | None:
        """The echoed prompt."""
        if not self._request.echo:
            return None
        said = self._prompt_logprobs(index, choices)
        return Completion(*self._head, [CompletionChoice(index, self._echo(index), logprobs=said)], usage)

    def chunk(self, piece: Piece, usage: UsageField) -> msgspec.Struct:
        if self._request.max_tokens == 0:
            choice = CompletionChoice(piece.index, "", piece.finish_reason and "length")
        else:
            choice = CompletionChoice(piece.index, piece.text, piece.finish_reason, piece.stop_reason)
            if self._request.top is not None and piece.token_ids:
                choice.logprobs = self._logprobs(piece.index, piece.token_ids, piece.logprobs)
        return Completion(*self._head, [choice], usage)

    def closing(self, usage: Usage) -> msgspec.Struct:
        return Completion(*self._head, [], usage)

    def whole(self, texts: Sequence[str], choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        listed = [
            self._choice(choice, text, choices, self._said(choice, choices))
            for text, choice in zip(texts, choices, strict=True)
        ]
        return Completion(*self._head, listed, usage)

    def _choice(
        self, choice: Choice, text: str, choices: Sequence[Choice], said: CompletionLogprobs | None
    ) -> CompletionChoice:
        if self._request.max_tokens == 0:
            made = CompletionChoice(choice.index, self._echo(choice.index), "length", None, said)
        else:
            text = self._echo(choice.index) + text if self._request.echo else text
            made = CompletionChoice(choice.index, text, choice.finish_reason, choice.stop_reason, said)
        if self._request.prompt_logprobs is not None:
            made.prompt_logprobs = self._of_prompt(choice.index, choices)
        return made

    def _said(self, choice: Choice, choices: Sequence[Choice]) -> CompletionLogprobs | None:
        """The log-probabilities of the whole choice."""
        parts = []
        if self._request.echo:
            parts.append(self._prompt_logprobs(choice.index, choices))
        if self._request.max_tokens != 0 and self._request.top is not None:
            parts.append(self._logprobs(choice.index, choice.token_ids, choice.logprobs))
        given = [part for part in parts if part is not None]
        return joined_logprobs(given) if given else None

    def _logprobs(
        self, index: int, token_ids: Sequence[int], positions: Sequence[Position | None] | None
    ) -> CompletionLogprobs | None:
        if positions is None or len(positions) != len(token_ids):  # the engine gives none
            return None
        if index not in self._offsets:
            start = len(self._echo(index)) if self._request.echo else 0
            skip = self._request.skip_special_tokens
            self._offsets[index] = Offsets(self._spelling.tokenizer, start, skip_special=skip)
        return completion_logprobs(token_ids, positions, self._offsets[index], self._name)

    def _prompt_logprobs(self, index: int, choices: Sequence[Choice]) -> CompletionLogprobs | None:
        """Of the echoed prompt, if log-probabilities are asked for; only as many as of the output."""
        top = self._request.top
        positions = choices[index - index % self._request.n].prompt_logprobs
        prompt = self._prompts[index // self._request.n]
        if top is None or positions is None or len(positions) != len(prompt):
            return None
        tokenizer = self._spelling.tokenizer
        # Those that the tokenizer has put in front are no part of the text.
        skip = tokenizer.decode(prompt, skip_special=False) != self._echo(index)
        offset = Offsets(tokenizer, skip_special=skip)
        return completion_logprobs(prompt, [_least(p, top) for p in positions], offset, self._name)

    def _of_prompt(self, index: int, choices: Sequence[Choice]) -> PromptLogprobs:
        top = self._request.prompt_logprobs or 0
        positions = choices[index - index % self._request.n].prompt_logprobs or ()
        return prompt_logprobs([_least(position, top) for position in positions])

    def _echo(self, index: int) -> str:
        return self._echoed[index // self._request.n]

    def _text_of(self, prompt: str | list[int], ids: Sequence[int]) -> str:
        if isinstance(prompt, str) or not self._request.echo:
            return prompt if isinstance(prompt, str) else ""
        return self._spelling.tokenizer.decode(ids, skip_special=False)


def _least(position: Position | None, top: int) -> Position | None:
    """The token that came, and no more than `top` others: an engine was asked once for whoever wanted most."""
    if position is None or top == -1:
        return position
    ranked = list(position.items())
    return dict(ranked[:1] + [(i, p) for i, p in ranked[1:] if p.rank is not None and p.rank <= top])
