"""What a caller gets: `RequestOutput` with one `CompletionOutput` per choice, or `EmbeddingRequestOutput`; named as
users of vLLM know them."""

from __future__ import annotations

import msgspec

from muro.llm.logprobs import Position


class Piece(msgspec.Struct, gc=False):
    """News of one choice: what has become certain since the last piece. A `finish_reason` makes it the last one."""

    index: int
    """Position of the choice among all choices of its request: prompt by prompt, `n` for each."""
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    """"stop", "length", "abort" or "repetition"."""
    stop_reason: int | str | None = None
    """The stop string or stop token that ended it; None for the end-of-sequence token and everything else."""
    logprobs: list[Position] | None = None
    """For each of `token_ids`, if they were asked for and the engine gives any."""


class CompletionOutput(msgspec.Struct):
    """One choice; how much of it depends on the request's `output_kind`: all so far, or what is new."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[Position] | None = None
    """For each of `token_ids`, if they were asked for and the engine gives any."""
    cumulative_logprob: float | None = None
    """The sum over all tokens of the choice so far."""

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None


class RequestOutput(msgspec.Struct):
    """One prompt and its `n` choices."""

    request_id: str
    prompt: str | None
    """The text of the prompt; None if it was given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[Position | None] | None = None
    """For each token of the prompt, if they were asked for; None for the first one, before which nothing stands."""
    num_cached_tokens: int | None = None
    """Tokens of the prompt that the engine need not compute; None if it does not say."""


class EmbeddingOutput(msgspec.Struct):
    """A vector of float32 numbers."""

    embedding: list[float]


class EmbeddingRequestOutput(msgspec.Struct):
    """One prompt and its embedding."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    finished: bool = True
