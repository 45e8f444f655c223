"""The pure middle: token ids and parameters -> requests for an engine; an engine's deltas -> pieces of text.

Rules:

- What cannot be served is refused before any engine hears of it; the message names the option.
- Each of `n` choices is a request of its own; a seed becomes seed + position, so that choices differ and yet repeat.
- A choice ends with the first of: a stop string (found here; the engine is then told to stop), and what the engine
  says. Tokens after a stop string do not count, however many the engine has made meanwhile.
- Text that belongs to the first `min_tokens` tokens is not searched for stop strings.
- `Choice.token_ids` is the record of what was delivered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from muro.errors import InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from muro.llm.logprobs import Position, cumulated, joined, read_positions
from muro.llm.outputs import Piece
from muro.text.detokenizer import detokenizer_for
from muro.text.stop import StopChecker
from muro.text.tokenizer import Tokenizer
from muro.wire.output import EngineCoreOutput, EventType, FinishReason
from muro.wire.request import EngineCoreRequest, Int64, OutputKind, SamplingParams, StructuredOutputsParams

MAX_CHOICES = 1024
"""Choices of one request."""
GRAMMAR_BACKEND = "guidance"
"""vLLM's name for the library that our engines use, too."""

FINISH_WORDS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.REPETITION: "repetition",
}
"""`finish_reason` as callers read it; ERROR is raised instead."""


NOT_DELIVERED = ("prompt_logprob_token_ids",)
"""Options for what an engine may give, but no output of ours carries; a client of the engine itself gets it."""


def check_params(params: SamplingParams) -> None:
    """Types, and ranges that hold for every engine. What else an option asks for is the engine's to serve or refuse.

    Raises:
        InvalidRequestError: an option is wrong; `param` names it.
        UnsupportedOptionError: an option asks for what outputs do not carry.
    """
    _check_types(params)
    for name in NOT_DELIVERED:
        if getattr(params, name) is not None:
            raise UnsupportedOptionError(f"the option {name!r} is not supported: outputs carry none", param=name)
    if params.flat_logprobs:
        raise UnsupportedOptionError("flat_logprobs is not supported: outputs have one form", param="flat_logprobs")
    _demand(1 <= params.n <= MAX_CHOICES, "n", params.n, f"in 1 ... {MAX_CHOICES}")
    _demand(0.0 <= params.temperature < math.inf, "temperature", params.temperature, "a number that is not negative")
    _demand(0.0 < params.top_p <= 1.0, "top_p", params.top_p, "above 0 and at most 1")
    _demand(-1 <= params.top_k < 2**31, "top_k", params.top_k, "positive, or 0 or -1 to switch it off")
    _demand(0.0 <= params.min_p <= 1.0, "min_p", params.min_p, "in 0 ... 1")
    _demand(params.max_tokens is None or params.max_tokens >= 1, "max_tokens", params.max_tokens, "at least 1")
    _demand(params.min_tokens >= 0, "min_tokens", params.min_tokens, "not negative")
    if params.max_tokens is not None:
        at_most = f"at most max_tokens, which is {params.max_tokens}"
        _demand(params.min_tokens <= params.max_tokens, "min_tokens", params.min_tokens, at_most)
    _demand(params.seed is None or -(2**63) <= params.seed < 2**63, "seed", params.seed, "an integer of 64 bits")
    if "" in stop_strings(params):
        raise InvalidRequestError("a stop string must not be empty", param="stop")


def stop_strings(params: SamplingParams) -> list[str]:
    """The stop strings as a list, however they were given."""
    return [params.stop] if isinstance(params.stop, str) else list(params.stop or ())


def check_length(num_tokens: int, max_model_len: int, max_tokens: int | None = None) -> None:
    """Raises PromptTooLongError for a prompt that leaves no room for a token, or for `max_tokens` if given."""
    if num_tokens >= max_model_len:
        what = f"the prompt has at least {num_tokens} tokens"
    elif max_tokens is not None and num_tokens + max_tokens > max_model_len:
        what = f"the prompt has {num_tokens} tokens and up to {max_tokens} are asked for"
    else:
        return
    what += f"; prompt and output together may have {max_model_len}"
    raise PromptTooLongError(what, param="prompt" if num_tokens >= max_model_len else "max_tokens")


def engine_params(
    params: SamplingParams, num_prompt_tokens: int, tokenizer: Tokenizer, max_model_len: int
) -> SamplingParams:
    """The parameters as an engine needs them: it has no tokenizer and knows no text (protocol section 8).

    `max_tokens` is lowered to what the context has left; `check_length` is for callers who want an error instead.
    """
    room = max_model_len - num_prompt_tokens
    # Of several end tokens an engine knows one; the others are stop tokens to it.
    others = () if params.ignore_eos else tokenizer.eos_token_ids[1:]
    stop_ids = list(dict.fromkeys([*(params.stop_token_ids or ()), *others]))
    return msgspec.structs.replace(
        params,
        n=1,
        stop=None,
        stop_token_ids=stop_ids,
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        min_tokens=min(params.min_tokens, room),
        output_kind=OutputKind.DELTA,
        structured_outputs=_with_backend(params.structured_outputs),
        eos_token_id=None if params.ignore_eos else tokenizer.eos_token_id,
        all_stop_token_ids=sorted({*stop_ids, *tokenizer.eos_token_ids}),
        bad_words=[],
        bad_words_token_ids=_bad_words(params.bad_words or (), tokenizer) or params.bad_words_token_ids,
    )


def _with_backend(wanted: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
    """vLLM's engines must be told what shall compile a grammar (protocol section 8); ours have nothing else."""
    if wanted is None or wanted.backend is not None:
        return wanted
    return msgspec.structs.replace(wanted, backend=GRAMMAR_BACKEND)


class Standing(msgspec.Struct, frozen=True):
    """What a request asks of the scheduler and of the prefix cache."""

    priority: Int64 = 0
    """Smaller runs earlier; anything but 0 needs an engine that schedules by priority."""
    cache_salt: str | None = None
    """Only requests with the same one share what the cache holds."""
    data_parallel_rank: int | None = None
    """The engine that computes it; None: any."""


def fan_out(
    request_id: str,
    prompt: list[int],
    params: SamplingParams,
    n: int,
    *,
    external_id: str,
    standing: Standing = Standing(),  # noqa: B008 - frozen
) -> list[EngineCoreRequest]:
    """The `n` engine requests behind one prompt; `params` of `engine_params`, ids "REQUEST_ID-POSITION"."""
    return [
        EngineCoreRequest(
            request_id=f"{request_id}-{position}",
            prompt_token_ids=prompt,
            sampling_params=_for_choice(params, position),
            cache_salt=standing.cache_salt,
            priority=standing.priority,
            data_parallel_rank=standing.data_parallel_rank,
            external_req_id=external_id,
        )
        for position in range(n)
    ]


class Choice:
    """One choice of a request: takes the engine's deltas, gives pieces.

    Args:
        index: see `Piece`.
        request_id: of the engine request behind it.
        params: the caller's.
        tokenizer: for the text.
    """

    __slots__ = (
        "_checker", "_detokenizer", "_min_tokens", "_params", "_tokenizer", "_wants_logprobs", "cached_tokens",
        "cumulative_logprob",
        "finish_reason", "index", "logprobs", "prompt_logprobs", "queued_seconds", "request_id", "stop_reason",
        "token_ids",
    )  # fmt: skip

    def __init__(self, index: int, request_id: str, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.index = index
        self.request_id = request_id
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.queued_seconds: float | None = None
        """How long the engine let it wait before its first step, if it says so."""
        self.logprobs: list[Position] | None = None
        """For each of `token_ids`; None if there are none."""
        self.cumulative_logprob: float | None = None
        self.prompt_logprobs: list[Position | None] | None = None
        """See `RequestOutput`; the first choice of a prompt has them."""
        self.cached_tokens: int | None = None
        """Tokens of the prompt that need not be computed, if the engine says so."""
        self._params, self._tokenizer = params, tokenizer
        self._wants_logprobs = params.logprobs is not None or params.logprob_token_ids is not None
        skip_special = params.skip_special_tokens
        self._detokenizer = detokenizer_for(tokenizer, skip_special=skip_special) if params.detokenize else None
        stop = stop_strings(params)
        self._checker = StopChecker(stop, params.include_stop_str_in_output) if stop and params.detokenize else None
        self._min_tokens = params.min_tokens

    def take(self, outputs: Sequence[EngineCoreOutput]) -> Piece:
        """The next piece from outputs in their order, at least one.

        After the last piece nothing may be taken. If `stopped_early` is true then, the engine does not know yet.
        """
        last = outputs[-1]
        ids = last.new_token_ids if len(outputs) == 1 else [token for o in outputs for token in o.new_token_ids]
        if not self.token_ids:
            self._note_events(outputs)
            self._note_prompt(outputs)
        if self._checker is not None:
            text, ids = self._search(self._checker, ids)
        else:
            text = "" if self._detokenizer is None else self._detokenizer.push(ids)
            self.token_ids += ids
        if last.finish_reason is not None and self.finish_reason is None:
            text += self._finish(last)
        logprobs = self._read(outputs, len(ids)) if self._wants_logprobs else None
        return Piece(self.index, text, ids, self.finish_reason, self.stop_reason, logprobs)

    @property
    def stopped_early(self) -> bool:
        """Whether a stop string ended it."""
        return self._checker is not None and self._checker.hit is not None

    def _search(self, checker: StopChecker, ids: list[int]) -> tuple[str, list[int]]:
        """Text and delivered ids. Token by token, so that the outcome does not depend on how deltas were merged."""
        text = ""
        for position, token in enumerate(ids):
            self.token_ids.append(token)
            piece = "" if self._detokenizer is None else self._detokenizer.push([token])
            text += piece if len(self.token_ids) <= self._min_tokens else self._feed(checker, piece)
            if self.finish_reason is not None:
                return text, ids[: position + 1]
        return text, ids

    def _feed(self, checker: StopChecker, piece: str) -> str:
        text, hit = checker.feed(piece)
        if hit is not None:
            self.finish_reason, self.stop_reason = "stop", hit
        return text

    def _finish(self, last: EngineCoreOutput) -> str:
        """Take note of the engine's reason; gives the text that was held back."""
        text = "" if self._detokenizer is None else self._detokenizer.flush()
        if self._checker is not None:
            text = self._feed(self._checker, text)
            if self.finish_reason is not None:
                return text
            text += self._checker.flush()
        self.finish_reason = FINISH_WORDS[FinishReason(last.finish_reason or 0)]
        self.stop_reason = last.stop_reason
        return text

    def _read(self, outputs: Sequence[EngineCoreOutput], count: int) -> list[Position] | None:
        """Log-probabilities of the first `count` new tokens: a stop string may have cut the others off."""
        given = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
        if not given:
            return None
        top = self._params.logprobs or 0
        new = [position for part in given for position in read_positions(part, top, self._spell)][:count]
        self.logprobs = joined(self.logprobs, new)
        self.cumulative_logprob = (self.cumulative_logprob or 0.0) + cumulated(new)
        return new

    def _note_prompt(self, outputs: Sequence[EngineCoreOutput]) -> None:
        for output in outputs:
            if self.cached_tokens is None and output.prefill_stats is not None:
                self.cached_tokens = output.prefill_stats.num_cached_tokens
            if (given := output.new_prompt_logprobs_tensors) is not None:
                top = self._params.prompt_logprobs or 0
                self.prompt_logprobs = [None, *read_positions(given, top, self._spell)]

    def _spell(self, token_id: int) -> str | None:
        return self._tokenizer.decode([token_id], skip_special=False) if self._params.detokenize else None

    def _note_events(self, outputs: Sequence[EngineCoreOutput]) -> None:
        times = {event.type: event.timestamp for output in outputs for event in reversed(output.events or ())}
        if EventType.QUEUED in times and EventType.SCHEDULED in times:
            self.queued_seconds = max(0.0, times[EventType.SCHEDULED] - times[EventType.QUEUED])


def _check_types(params: Any) -> None:
    """Structs take any value; here it must be of its field's type, as it would have to be on the wire."""
    if not isinstance(params, SamplingParams):
        what = f"sampling parameters are a muro.SamplingParams, not {_kind(params)}"
        raise InvalidRequestError(what, param="sampling_params")
    _demand(isinstance(params.extra_args, dict | None), "extra_args", params.extra_args, "a dictionary")
    if params.extra_args is not None or params.prompt_logprob_token_ids is not None:  # these may hold arrays
        params = msgspec.structs.replace(params, extra_args=None, prompt_logprob_token_ids=None)
    try:
        msgspec.convert(msgspec.to_builtins(params), SamplingParams)
    except msgspec.ValidationError as error:
        found = re.search(r"\$\._?(\w+)", str(error))
        name = found[1] if found else "sampling_params"
        words = str(error).removesuffix(f" - at `$.{name}`")
        raise InvalidRequestError(f"{name}: {words}", param=name) from None
    except (TypeError, ValueError, RecursionError):
        name = next(filter(lambda field: not _plain(getattr(params, field)), params.__struct_fields__))
        what = f"{name} holds {_kind(getattr(params, name))}; it must be plain numbers, texts, lists or dictionaries"
        raise InvalidRequestError(what, param=name) from None


def _plain(value: object) -> bool:
    try:
        msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _for_choice(params: SamplingParams, position: int) -> SamplingParams:
    """Each choice has a seed of its own; what is to be said of the prompt, the first one says."""
    if position == 0 or (params.seed is None and params.prompt_logprobs is None):
        return params
    seed = params.seed
    if seed is not None:
        seed = (seed + position + 2**63) % 2**64 - 2**63  # stays within 64 bits
    return msgspec.structs.replace(params, seed=seed, prompt_logprobs=None)


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of the words, at the beginning of a text and in the middle of one, where a space comes before."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            found[tuple(tokenizer.encode(text, add_special=False))] = None
    return [list(ids) for ids in found if ids]


def _demand(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name} is {value}; it must be {rule}", param=name)
