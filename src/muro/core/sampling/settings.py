"""What one request wants of sampling, checked and in the form that costs least per token. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy (protocol section 8)."""

NO_TOKEN = -1
"""In place of a token id: the row has no usable score (NaN, infinity, or everything forbidden)."""

Row = NDArray[np.float32]
Ids = NDArray[np.intp]


class Bias(msgspec.Struct, frozen=True, gc=False):
    """What is added to the logits of some ids."""

    ids: Ids
    values: Row


class ThinkingMarkers(msgspec.Struct, frozen=True, gc=False):
    """The tokens that begin and end a stretch of thinking; neither is empty."""

    start: tuple[int, ...]
    end: tuple[int, ...]


class ThinkingBudget(msgspec.Struct, frozen=True, gc=False):
    """After `budget` tokens behind a start marker, the end marker is forced."""

    budget: int
    markers: ThinkingMarkers


class Repetition(msgspec.Struct, frozen=True, gc=False):
    """The output ends when its last tokens are `min_count` (at least 2) times the same pattern of such a size."""

    min_pattern_size: int
    max_pattern_size: int
    min_count: int


class History(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options that look back at the tokens so far; see `state.py`.

    `bad_words` maps the last token of the beginning of a word to (the whole beginning, the token that must not
    follow); words of one token are in `bad_tokens`.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stop_ids: Ids | None = None
    """What must not come while the output has fewer than `min_tokens`."""
    bad_tokens: Ids | None = None
    bad_words: Mapping[int, Sequence[tuple[list[int], int]]] | None = None
    thinking: ThinkingBudget | None = None
    repetition: Repetition | None = None

    @property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1.0

    @property
    def looks_back(self) -> bool:
        """Whether any of the options is set."""
        rules = (self.stop_ids, self.bad_tokens, self.bad_words, self.thinking, self.repetition)
        return self.penalises or any(rule is not None for rule in rules)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one request chooses its tokens; checked by `preprocess.py`.

    Order: mask of a grammar, `bias`, penalties, forbidden ids, temperature; then the filters `allowed`, `min_p`,
    `top_k`, `top_p`. Log-probabilities are those of the model, before any of it: of the chosen token, of the
    `logprobs` most probable ones (-1: of all), and of `logprob_token_ids`. None and None: no log-probabilities.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    allowed: Ids | None = None
    bias: Bias | None = None
    history: History | None = None
    """None: nothing looks back, and the next token asks for no state."""
    logprobs: int | None = None
    logprob_token_ids: Ids | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def reads_row(self) -> bool:
        """Whether a row is changed or reported on, history and temperature apart."""
        rules = (self.allowed, self.bias, self.logprobs, self.logprob_token_ids)
        return any(rule is not None for rule in rules)
