"""What each request will be told, laid out when it comes in, so that a step only has to look it up."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Literal

import msgspec

from muro.engines.sim.lengths import Lengths, chance_of
from muro.engines.sim.text import LENGTH, Text
from muro.wire.request import RESUMED_TOKENS, SamplingParams

Tokens = Literal["fixed", "echo", "sampled"]


class Stream(msgspec.Struct, gc=False):
    """The tokens of one request: the one at position p of its sequence is `tokens[base + p]`."""

    tokens: list[int]
    base: int
    begun: bool = False
    """Whether its prompt was begun to be computed."""


class Streams:
    """Lays out requests.

    Args:
        text: what is said.
        tokens: where answers come from, see `SimOptions.tokens`.
        lengths: how long they are; None: up to `max_tokens`.
        max_model_len: the most tokens of a sequence.
    """

    def __init__(self, text: Text, tokens: Tokens, lengths: Lengths | None, max_model_len: int) -> None:
        self._text = text
        self._tokens = tokens
        self._lengths = lengths
        self._max_model_len = max_model_len

    def lay_out(self, prompt: list[int], params: SamplingParams) -> tuple[Stream, SamplingParams]:
        """The stream of a request, and how it is to be sampled then.

        An answer that has reached its length ends with the end token; where the request knows none, or the tokens are
        really sampled, with `max_tokens`. `ignore_eos` lets no answer end before that.
        """
        resumed = (params.extra_args or {}).get(RESUMED_TOKENS) or 0
        start = max(len(prompt) - resumed, 1) if isinstance(resumed, int) else len(prompt)
        length = None if params.ignore_eos else self._length(prompt[:start], params.min_tokens)
        if length is not None and (params.eos_token_id is None or self._tokens == "sampled"):
            most = length if params.max_tokens is None else min(length, params.max_tokens)
            length, params = None, msgspec.structs.replace(params, max_tokens=most)
        if self._tokens == "sampled":
            return Stream([], 0), params
        # One token stands out so far that no temperature in use would draw another: not to draw is cheaper.
        params = msgspec.structs.replace(params, temperature=0.0)
        if self._tokens == "fixed" and length is None and self._max_model_len <= LENGTH:
            # Of what an answer has so far, a grammar or a bias may have made something else than the text.
            place = self._text.digest(prompt[:start]) % LENGTH
            return Stream(self._text.tokens, place - start), params
        room = max(self._max_model_len - start, 1)
        most = max(1, min(length or room, params.max_tokens or room, room))
        if self._tokens == "echo":
            tokens = list(islice(cycle(prompt[:start] or [0]), most + 1))
        else:
            tokens = self._text.continuation(prompt[:start], most + 1)
        if length is not None and params.eos_token_id is not None:
            tokens[length - 1 :] = [params.eos_token_id]
        return Stream(tokens, -start), params

    def _length(self, prompt: list[int], min_tokens: int) -> int | None:
        """How many tokens the answer to a prompt has, its end token included."""
        if self._lengths is None:
            return None
        return max(self._lengths.draw(chance_of(self._text.digest(prompt))), min_tokens + 1)
