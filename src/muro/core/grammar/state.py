"""How far one request has come in its grammar: a function of its tokens alone, like `sampling/state.py`.

It is brought up to date token by token. Made anew from all tokens it is the same, so a request that was preempted or
continues elsewhere needs nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from muro.core.grammar.library import Mask, Matcher
from muro.errors import RequestError, RequestFailedError

BURST = 0.25
PER_TOKEN = 0.005
"""Seconds of the loop thread's CPU that a grammar may cost: in all, and more for each token. Others wait meanwhile."""


class GrammarState:
    """Follows the tokens of one request. Belongs to the loop thread.

    Args:
        start: gives a matcher of its own at the beginning of the output; called once.
        output_start: where in the tokens the output begins.
        vocab_size: width of the logits.
        eos_token_id: what ends an output; None: nothing but a grammar that is complete.
        begins_after: the tokens after which the structure begins, those that end thinking; empty: at once.
    """

    def __init__(
        self,
        start: Callable[[], Matcher],
        output_start: int,
        vocab_size: int,
        eos_token_id: int | None,
        begins_after: tuple[int, ...] = (),
    ) -> None:
        self._start = start
        self._matcher: Matcher | None = None
        self._known = output_start
        self._eos = eos_token_id if eos_token_id is not None and 0 <= eos_token_id < vocab_size else None
        self._awaited = begins_after
        self._mask: Mask = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._mask_length = -1
        self._spent = 0.0
        self._allowed = BURST
        self.error: RequestError | None = None
        """Why nothing is allowed any more."""

    @property
    def has_end(self) -> bool:
        """Whether there is a token that ends an output; it alone may follow one that is complete."""
        return self._eos is not None

    def mask(self, tokens: list[int]) -> Mask | None:
        """What may come after `tokens`; None for everything. Good until the next call.

        Nothing at all may if the library fails, or `tokens` do not follow the grammar; `error` then says so.
        """
        length = len(tokens)
        if self._mask_length != length:
            self._mask_length = length
            begun = time.thread_time()
            try:
                self._fill(tokens)
            except RequestError as error:
                self._give_up(error)
            self._pay(time.thread_time() - begun)
        return None if self._matcher is None and self.error is None else self._mask

    def is_complete(self, tokens: list[int]) -> bool:
        """Whether the output is, so that nothing can follow."""
        if self.error is not None:
            return False
        begun = time.thread_time()
        try:
            self._follow(tokens)
            return self._matcher is not None and self._matcher.must_end()
        except RequestError as error:
            self._give_up(error)
            return False
        finally:
            self._spent += time.thread_time() - begun

    def _fill(self, tokens: list[int]) -> None:
        if self.error is not None:
            return
        self._follow(tokens)
        matcher = self._matcher
        if matcher is None:
            return
        matcher.fill(self._mask)
        if self._eos is not None and matcher.may_end():
            self._mask[self._eos >> 5] |= np.uint32(1 << (self._eos & 31))

    def _follow(self, tokens: list[int]) -> None:
        """Take in what is new in `tokens`, prompt and output of the request."""
        while self._matcher is None:
            if self._awaited:
                end = self._known + len(self._awaited)
                if end > len(tokens):
                    return
                if tuple(tokens[self._known : end]) != self._awaited:
                    self._known += 1
                    continue
                self._known = end
            self._matcher = self._start()
        for token in tokens[self._known :]:
            self._matcher.consume(token)
        self._known = len(tokens)

    def _give_up(self, error: RequestError) -> None:
        self.error = error
        self._mask[:] = 0

    def _pay(self, seconds: float) -> None:
        self._spent += seconds
        self._allowed += PER_TOKEN
        if self._spent > self._allowed and self.error is None:
            what = f"the grammar costs too much: {self._spent:.2f} s of the engine's time for so few tokens"
            self._give_up(RequestFailedError(what))
