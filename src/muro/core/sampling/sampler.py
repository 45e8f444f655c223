"""Rows of logits -> the next tokens and their log-probabilities.

A token is a pure function of (seed, output position, logits, tokens before). What concerns whole rows is done row by
row, since one row fits into the processor's cache and a batch does not; what concerns the few candidates of a row, for
many rows at once. Does not know requests; a `Draw` is all that it needs of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from muro.core.sampling.candidates import Candidates, Filters
from muro.core.sampling.edit import edit, is_edited
from muro.core.sampling.logprobs import Columns, PromptLogprobs, sample_logprobs
from muro.core.sampling.noise import Noise, noise_key
from muro.core.sampling.race import winners
from muro.core.sampling.settings import NO_TOKEN, Ids, Row
from muro.core.sampling.state import Draw
from muro.wire.output import Logprobs

_AT_ONCE = 1 << 16
"""How many candidates are drawn from at once, about."""


class Sampled(msgspec.Struct):
    """The result for each row: a token id or `NO_TOKEN`, and log-probabilities where they were asked for."""

    token_ids: list[int]
    logprobs: list[Logprobs | None]


class Sampler:
    """Chooses tokens for rows of `vocab_size` logits. Holds work space only; not safe for two threads."""

    def __init__(self, vocab_size: int) -> None:
        self._noise = Noise(vocab_size)
        self._filters = Filters(vocab_size)
        self._columns = Columns(vocab_size)
        self._edited = np.empty(vocab_size, np.float32)

    def sample(self, logits: NDArray[np.float32], draws: Sequence[Draw | None]) -> Sampled:
        """Choose one token per row of `logits`, shape [len(draws), vocab_size]; a row whose draw is None is skipped."""
        if not draws:
            return Sampled([], [])
        # Logits may be as far apart as the numbers go; what overflows then is as good as infinite.
        with np.errstate(over="ignore"):
            token_ids = self._tokens(logits, draws)
            logprobs = self._logprobs(logits, draws, token_ids)
        return Sampled(token_ids, logprobs)

    def read_prompt(self, logprobs: PromptLogprobs, logits: NDArray[np.float32], token_ids: list[int]) -> None:
        """Book what `logits`, shape [len(token_ids), vocab_size], say of the tokens of a prompt that followed."""
        with np.errstate(over="ignore"):
            for row, token_id in zip(logits, token_ids, strict=True):
                logprobs.add(self._columns, row, token_id)

    def _logprobs(
        self, logits: NDArray[np.float32], draws: Sequence[Draw | None], token_ids: list[int]
    ) -> list[Logprobs | None]:
        logprobs: list[Logprobs | None] = [None] * len(draws)
        for i, draw in enumerate(draws):
            if draw is not None and draw.sampling.logprobs is not None and token_ids[i] != NO_TOKEN:
                top, others = draw.sampling.logprobs, draw.sampling.logprob_token_ids
                logprobs[i] = sample_logprobs(self._columns, logits[i], token_ids[i], top, others)
        return logprobs

    def _tokens(self, logits: NDArray[np.float32], draws: Sequence[Draw | None]) -> list[int]:
        if all(draw is not None and _is_plain(draw) for draw in draws):
            best = logits.argmax(axis=1)
            usable = np.isfinite(logits[np.arange(len(draws)), best])
            return [int(token_id) for token_id in np.where(usable, best, NO_TOKEN)]
        token_ids = [NO_TOKEN] * len(draws)
        waiting: dict[int, Candidates] = {}
        size = 0
        for i, draw in enumerate(draws):
            if draw is None:
                continue
            chosen = self._choose(logits[i], draw)
            if isinstance(chosen, int):
                token_ids[i] = chosen
                continue
            waiting[i] = chosen
            size += len(chosen.ids)
            if size > _AT_ONCE:
                self._draw(logits, draws, waiting, token_ids)
                size = 0
        self._draw(logits, draws, waiting, token_ids)
        return token_ids

    def _choose(self, row: Row, draw: Draw, outsiders: Ids | None = None) -> int | Candidates:
        """The token, if there is no choice, or what it is drawn from."""
        sampling = draw.sampling
        first = int(row.argmax())
        if not math.isfinite(row[first]):
            return NO_TOKEN
        if draw.forced is not None:
            return draw.forced
        if is_edited(draw):
            row = edit(row, draw, self._edited)
            first = int(row.argmax())
        if sampling.allowed is not None:
            first = int(sampling.allowed[row[sampling.allowed].argmax()])
        top = float(row[first])
        if not math.isfinite(top):
            return NO_TOKEN
        if sampling.is_greedy:
            return first
        return self._filters.candidates(row, sampling, noise_key(sampling.seed, draw.position), top, outsiders)

    def _draw(
        self,
        logits: NDArray[np.float32],
        draws: Sequence[Draw | None],
        waiting: dict[int, Candidates],
        token_ids: list[int],
    ) -> None:
        """Draw for those that wait, and let nobody wait any more."""
        while waiting:
            drawn = dict(zip(waiting, winners(self._noise, list(waiting.values())), strict=True))
            waiting.clear()
            for i, found in drawn.items():
                draw = draws[i]
                if isinstance(found, int):
                    token_ids[i] = found
                elif draw is not None:
                    candidates = self._choose(logits[i], draw, found)
                    if isinstance(candidates, Candidates):
                        waiting[i] = candidates


def _is_plain(draw: Draw) -> bool:
    sampling = draw.sampling
    return sampling.is_greedy and sampling.allowed is None and draw.forced is None and not is_edited(draw)
