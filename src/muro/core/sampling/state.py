"""What the tokens so far mean for the next one: penalties, bad words, `min_tokens`, thinking, repetition.

The state of a request is a function of its tokens alone. It is brought up to date token by token; made anew from all
tokens, it is the same, so a request that was preempted or continues elsewhere needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from muro.core.sampling.settings import History, Ids, Repetition, Row, Sampling, ThinkingBudget

_ROOM = 256


class Occurrences(msgspec.Struct, gc=False):
    """Token ids that occurred, each once, and how often each of them did in the output (0: in the prompt only)."""

    ids: Ids
    counts: Row


class Draw(msgspec.Struct, gc=False):
    """One token to choose: at which position of the output, and what changes its logits now."""

    sampling: Sampling
    position: int
    banned: Sequence[Ids] = ()
    """Ids that must not be taken."""
    occurrences: Occurrences | None = None
    """What penalties are for."""
    forced: int | None = None
    """The token, whatever the logits are."""
    mask: NDArray[np.uint32] | None = None
    """What a grammar allows: bit i % 32 of word i // 32 for id i; its length is ceil(vocab_size / 32)."""


class SamplerState:
    """Follows the tokens of one request.

    Args:
        history: what is to be followed.
        output_start: where in the tokens the output begins.
    """

    def __init__(self, history: History, output_start: int) -> None:
        self._history = history
        self._start = output_start
        self._known = 0
        self._seen: SeenTokens | None = None
        self._thinking = None if history.thinking is None else ThinkingTracker(history.thinking)
        self._repeats = None if history.repetition is None else RepetitionTracker(history.repetition)

    def follow(self, tokens: list[int]) -> None:
        """Take in what is new in `tokens`, prompt and output of the request."""
        known, self._known = self._known, len(tokens)
        if known == 0:
            self._begin(tokens)
            known = min(self._start, len(tokens))
        for token in tokens[known:]:
            if self._seen is not None:
                self._seen.add(token)
            if self._thinking is not None:
                self._thinking.add(token)
            if self._repeats is not None:
                self._repeats.add(token)

    def draw(self, sampling: Sampling, tokens: list[int]) -> Draw:
        """How to choose the token after `tokens`."""
        self.follow(tokens)
        forced = None if self._thinking is None else self._thinking.forced()
        occurrences = None if self._seen is None else self._seen.occurrences()
        return Draw(sampling, len(tokens) - self._start, self._banned(tokens), occurrences, forced)

    @property
    def is_repeating(self) -> bool:
        """Whether the tokens that were followed end in the repetition that was to be detected."""
        return self._repeats is not None and self._repeats.found

    def _begin(self, tokens: list[int]) -> None:
        prompt = tokens[: self._start]
        if self._history.penalises:
            self._seen = SeenTokens(prompt if self._history.repetition_penalty != 1.0 else ())
        if self._thinking is not None:
            for token in prompt:
                self._thinking.add(token)

    def _banned(self, tokens: list[int]) -> list[Ids]:
        history, length = self._history, len(tokens) - self._start
        banned = []
        if history.stop_ids is not None and length < history.min_tokens:
            banned.append(history.stop_ids)
        if history.bad_tokens is not None:
            banned.append(history.bad_tokens)
        if history.bad_words is not None and length:
            endings = [
                last
                for beginning, last in history.bad_words.get(tokens[-1], ())
                if len(beginning) <= length and tokens[-len(beginning) :] == beginning
            ]
            if endings:
                banned.append(np.array(endings, np.intp))
        return banned


class SeenTokens:
    """Token ids of prompt and output, counted in the output; constant time per token."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._ids = np.array([*self._places, *[0] * _ROOM], np.intp)
        self._counts = np.zeros(len(self._ids), np.float32)

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1.0

    def occurrences(self) -> Occurrences:
        number = len(self._places)
        return Occurrences(self._ids[:number], self._counts[:number])


class ThinkingTracker:
    """Whether the tokens are within a stretch of thinking, and for how long. There is none within another."""

    def __init__(self, rule: ThinkingBudget) -> None:
        self._rule = rule
        self._longest = max(len(rule.markers.start), len(rule.markers.end))
        self._last: list[int] = []
        self._inside = False
        self._spent = 0

    def add(self, token: int) -> None:
        last = self._last
        last.append(token)
        if len(last) > self._longest:
            del last[0]
        marker = self._rule.markers.end if self._inside else self._rule.markers.start
        self._spent += 1
        if token == marker[-1] and tuple(last[-len(marker) :]) == marker:
            self._inside = not self._inside
            self._spent = 0
            last.clear()

    def forced(self) -> int | None:
        """The next token of the end marker, if the budget is spent; what stands of it already counts."""
        if not self._inside or self._spent < self._rule.budget:
            return None
        end = self._rule.markers.end
        stands = next(n for n in range(len(end) - 1, -1, -1) if n == 0 or tuple(self._last[-n:]) == end[:n])
        return end[stands]


class RepetitionTracker:
    """For each size of pattern, how many of the last tokens equal the one that many places before."""

    def __init__(self, rule: Repetition) -> None:
        self._rule = rule
        self._tokens: list[int] = []
        self._runs = [0] * (rule.max_pattern_size + 1)
        self.found = False

    def add(self, token: int) -> None:
        rule, tokens, runs = self._rule, self._tokens, self._runs
        tokens.append(token)
        self.found = False
        for size in range(rule.min_pattern_size, min(rule.max_pattern_size, len(tokens) - 1) + 1):
            if tokens[-1 - size] != token:
                runs[size] = 0
                continue
            runs[size] += 1
            if runs[size] >= size * (rule.min_count - 1):
                self.found = True
