"""The sampling options of a request (protocol section 8), checked and brought into the form of `settings.py`.

What a value means is said there; here is what it may be. Errors name the option.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from muro.core.sampling.settings import Bias, History, Ids, Repetition, Sampling, ThinkingBudget
from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.wire.request import SamplingParams

if TYPE_CHECKING:
    from muro.core.preprocess import Bounds

MAX_LOGPROB_TOKEN_IDS = 128
MAX_BIAS = 100.0
MAX_TEMPERATURE = 1e30
MAX_BAD_WORDS = 4096
MAX_PATTERN_SIZE = 1024
"""Bounds of the protocol (the first two), of numbers (from there on all ids are equal), and of the work per step."""


def sampling(params: SamplingParams, bounds: Bounds) -> Sampling:
    """How a request chooses its tokens. One without a seed gets a random one.

    Raises:
        InvalidRequestError: a value is wrong.
        UnsupportedOptionError: a thinking budget, and the engine was not told what begins and ends thinking.
    """
    demand(0.0 <= params.temperature < math.inf, "temperature", params.temperature, "a number that is not negative")
    demand(0.0 < params.top_p <= 1.0, "top_p", params.top_p, "above 0 and at most 1")
    demand(params.top_k >= -1, "top_k", params.top_k, "positive, or 0 or -1 to switch it off")
    demand(0.0 <= params.min_p <= 1.0, "min_p", params.min_p, "in 0 ... 1")
    others = _logprob_token_ids(params, bounds)
    logprobs = checked_logprobs("logprobs", params.logprobs, bounds)
    return Sampling(
        temperature=min(params.temperature, MAX_TEMPERATURE),
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        seed=secrets.randbits(64) if params.seed is None else params.seed,
        allowed=_allowed(params, bounds),
        bias=_bias(params, bounds),
        history=_history(params, bounds),
        logprobs=0 if logprobs is None and others is not None else logprobs,
        logprob_token_ids=others,
    )


def checked_logprobs(name: str, asked: int | None, bounds: Bounds) -> int | None:
    """How many of the most probable ids to report; -1 for all, None for no log-probabilities."""
    if asked is not None:
        most = bounds.vocab_size if bounds.max_logprobs == -1 else bounds.max_logprobs
        count = bounds.vocab_size if asked == -1 else asked
        demand(0 <= count <= most, name, asked, f"in 0 ... {most}, the engine's max_logprobs")
    return asked


def demand(holds: bool, name: str, value: object, rule: str) -> None:
    """Raise InvalidRequestError unless `holds`."""
    if not holds:
        raise InvalidRequestError(f"{name} is {value}; it must be {rule}", param=name)


def _history(params: SamplingParams, bounds: Bounds) -> History | None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        demand(-2.0 <= value <= 2.0, name, value, "in -2 ... 2")
    repetition = params.repetition_penalty
    demand(1e-6 <= repetition <= 1e6, "repetition_penalty", repetition, "in 0.000001 ... 1000000; 1 switches it off")
    bad_tokens, bad_words = _bad_words(params, bounds)
    history = History(
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=repetition,
        min_tokens=max(params.min_tokens, 0),
        stop_ids=_stop_ids_to_ban(params, bounds),
        bad_tokens=bad_tokens,
        bad_words=bad_words,
        thinking=_thinking(params, bounds),
        repetition=_repetition(params),
    )
    return history if history.looks_back else None


def _allowed(params: SamplingParams, bounds: Bounds) -> Ids | None:
    ids = params.allowed_token_ids
    if ids is None:
        return None
    if not ids:
        raise InvalidRequestError("allowed_token_ids is empty", param="allowed_token_ids")
    _check_ids("allowed_token_ids", ids, bounds)
    stops = _stop_ids(params) if params.min_tokens > 0 else set()
    bad = {word[0] for word in params.bad_words_token_ids or () if len(word) == 1}
    if not set(ids) - stops - bad:
        what = " and ".join(name for name, banned in (("stop tokens", stops), ("bad words", bad)) if banned & set(ids))
        raise InvalidRequestError(f"allowed_token_ids holds nothing but {what}", param="allowed_token_ids")
    return _array(set(ids))


def _bias(params: SamplingParams, bounds: Bounds) -> Bias | None:
    bias = params.logit_bias
    if not bias:
        return None
    _check_ids("logit_bias", bias, bounds)
    for token_id, value in bias.items():
        demand(not math.isnan(value), "logit_bias", f"{value} for {token_id}", "a number")
    values = [max(-MAX_BIAS, min(MAX_BIAS, value)) for value in bias.values()]
    return Bias(np.array(list(bias), np.intp), np.array(values, np.float32))


def _logprob_token_ids(params: SamplingParams, bounds: Bounds) -> Ids | None:
    ids = params.logprob_token_ids
    if not ids:
        return None
    most = f"at most {MAX_LOGPROB_TOKEN_IDS} ids"
    demand(len(ids) <= MAX_LOGPROB_TOKEN_IDS, "logprob_token_ids", f"a list of {len(ids)}", most)
    _check_ids("logprob_token_ids", ids, bounds)
    return np.array(ids, np.intp)


def _stop_ids(params: SamplingParams) -> set[int]:
    ids = {*params.all_stop_token_ids, *(params.stop_token_ids or ())}
    if params.eos_token_id is not None and not params.ignore_eos:
        ids.add(params.eos_token_id)
    return ids


def _stop_ids_to_ban(params: SamplingParams, bounds: Bounds) -> Ids | None:
    """The ids that must not come while fewer than `min_tokens` exist."""
    if params.min_tokens <= 0:
        return None
    ids = {i for i in _stop_ids(params) if 0 <= i < bounds.vocab_size}
    return _array(ids) if ids else None


def _bad_words(
    params: SamplingParams, bounds: Bounds
) -> tuple[Ids | None, dict[int, list[tuple[list[int], int]]] | None]:
    words = params.bad_words_token_ids
    if not words:
        if params.bad_words:
            what = "bad_words came without the token ids of the words, which an engine without a tokenizer needs"
            raise UnsupportedOptionError(what, param="bad_words")
        return None, None
    name = "bad_words_token_ids"
    demand(len(words) <= MAX_BAD_WORDS, name, f"a list of {len(words)}", f"at most {MAX_BAD_WORDS} words")
    tokens: set[int] = set()
    longer: dict[int, list[tuple[list[int], int]]] = {}
    for word in words:
        demand(len(word) > 0, name, words, "a list of words that are not empty")
        _check_ids(name, word, bounds)
        if len(word) == 1:
            tokens.add(word[0])
        else:
            longer.setdefault(word[-2], []).append((word[:-1], word[-1]))
    return _array(tokens) if tokens else None, longer or None


def _thinking(params: SamplingParams, bounds: Bounds) -> ThinkingBudget | None:
    budget = params.thinking_token_budget
    if budget is None:
        return None
    if bounds.thinking is None:
        raise UnsupportedOptionError(
            "thinking_token_budget is not supported by this engine: it was not told which tokens begin and end "
            "thinking (engine options thinking_start_token_ids, thinking_end_token_ids)",
            param="thinking_token_budget",
        )
    demand(budget >= 0, "thinking_token_budget", budget, "not negative")
    return ThinkingBudget(budget, bounds.thinking)


def _repetition(params: SamplingParams) -> Repetition | None:
    asked = params.repetition_detection
    if asked is None or asked.max_pattern_size == 0:
        return None
    name = "repetition_detection"
    smallest = max(asked.min_pattern_size, 1)
    sizes = f"sizes in 1 ... {MAX_PATTERN_SIZE}, the smallest first"
    demand(asked.min_pattern_size >= 0 and smallest <= asked.max_pattern_size <= MAX_PATTERN_SIZE, name, asked, sizes)
    demand(asked.min_count >= 2, name, asked, "a min_count of at least 2")
    return Repetition(smallest, asked.max_pattern_size, asked.min_count)


def _check_ids(name: str, ids: Collection[int], bounds: Bounds) -> None:
    if min(ids) < 0 or max(ids) >= bounds.vocab_size:
        raise InvalidRequestError(
            f"{name} has token ids that must lie in 0 ... {bounds.vocab_size - 1}; found {min(ids)} ... {max(ids)}",
            param=name,
        )


def _array(ids: set[int]) -> Ids:
    return np.array(sorted(ids), np.intp)
