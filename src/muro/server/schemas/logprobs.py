"""Log-probabilities as OpenAI's two APIs write them, and those of the prompt as vLLM's server does.

How tokens are written is in `llm.spelling`. JSON has no infinities: what is impossible has a log-probability of -9999.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from muro.llm.logprobs import Logprob, Position
from muro.llm.spelling import Spelling

LEAST = -9999.0


class TopLogprob(msgspec.Struct):
    """One of the most probable tokens of a position; `bytes` are the token's, to be joined over several of them."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token that came, and the most probable ones in its place."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a chat's choice: one entry per token."""

    content: list[TokenLogprob] | None
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """`logprobs` of a completion's choice: lists with one entry per token.

    `text_offset` counts characters of the choice's whole text. The first token of a prompt that is echoed has no
    log-probability. `top_logprobs` holds the token that came besides those that were asked for.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct):
    """What the model said of one token in one place of the prompt; `rank` counts from 1, the most probable."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""For each token of the prompt, by token id; null for the first."""


def named_by_id(token_id: int) -> str:
    """As `return_tokens_as_token_ids` asks for it: no two tokens are written alike."""
    return f"token_id:{token_id}"


def chat_logprobs(positions: Iterable[Position], top: int, spelling: Spelling, *, by_id: bool = False) -> ChatLogprobs:
    """What a chat says of its tokens, with the `top` most probable ones in each place (-1: all)."""
    name = named_by_id if by_id else spelling.in_chat

    def entry(token_id: int, logprob: Logprob) -> TopLogprob:
        return TopLogprob(name(token_id), _finite(logprob), list(spelling.of(token_id)[1]))

    content = []
    for position in positions:
        came = entry(*next(iter(position.items())))
        ranked = [entry(token_id, logprob) for token_id, logprob in most_probable(position, top)]
        content.append(TokenLogprob(came.token, came.logprob, came.bytes, ranked))
    return ChatLogprobs(content)


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Position | None],
    offset: Callable[[int], int],
    name: Callable[[int], str],
) -> CompletionLogprobs:
    """What a completion says of these tokens; a position without log-probabilities is None."""
    written = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        written.text_offset.append(offset(token_id))
        written.tokens.append(name(token_id))
        written.token_logprobs.append(None if position is None else _finite(position[token_id]))
        written.top_logprobs.append(None if position is None else _by_name(position, name))
    return written


def joined_logprobs(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """One after the other."""
    whole = CompletionLogprobs([], [], [], [])
    for part in parts:
        for field in part.__struct_fields__:
            getattr(whole, field).extend(getattr(part, field))
    return whole


def prompt_logprobs(positions: Iterable[Position | None]) -> PromptLogprobs:
    """What is said of a prompt."""
    return [
        None
        if position is None
        else {token_id: PromptLogprob(_finite(p), p.rank, p.decoded_token) for token_id, p in position.items()}
        for position in positions
    ]


def most_probable(position: Position, top: int) -> list[tuple[int, Logprob]]:
    """The `top` most probable tokens of a position in descending order; -1: all that it holds."""
    entries = list(position.items())
    # The token that came is there in any case; with more than `top` tokens it is the one too many.
    found = entries if top == -1 or len(entries) <= top else entries[1:]
    return sorted(found, key=lambda entry: -entry[1].logprob)[: None if top == -1 else top]


def _by_name(position: Position, name: Callable[[int], str]) -> dict[str, float]:
    """By how tokens are written: of two that are written alike the more probable one."""
    named: dict[str, float] = {}
    for token_id, logprob in most_probable(position, -1):
        named.setdefault(name(token_id), _finite(logprob))
    return named


def _finite(logprob: Logprob) -> float:
    return max(logprob.logprob, LEAST)
