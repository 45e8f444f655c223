"""What an engine does not promise to do is refused by name before it is asked, so that nothing is dropped silently.

An engine of ours says in its ready response whether it honours sampling options, or refuses them itself. One that does
not (it has no distribution to sample from, as an echo) is asked for none of the options below. How to sample
(temperature, top_p, top_k, min_p, seed) it may ignore: every client sends those. Foreign engines answer for themselves,
but for what ends them: those of vLLM expect that their front-end has looked at every token id and every number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from muro.clients.interface import EngineStatus
from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.llm.pipeline import Standing
from muro.wire.request import SAMPLING_OPTIONS, SamplingParams

_SAMPLING = (
    "logprobs", "prompt_logprobs", "logprob_token_ids", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "repetition_detection", "thinking_token_budget",
    "structured_outputs",
)  # fmt: skip
_COUNTS = ("logprobs", "prompt_logprobs")
_IDS = ("stop_token_ids", "logprob_token_ids", "logit_bias", "allowed_token_ids")
_NEUTRAL = SamplingParams()


def check_offered(params: SamplingParams, standing: Standing, engines: Callable[[], Iterable[EngineStatus]]) -> None:
    """Raises UnsupportedOptionError that names an option which some engine would ignore."""
    asked = _first_asked(params, standing)
    if asked is not None and not all(_honours(engine) for engine in engines()):
        raise UnsupportedOptionError(f"the option {asked!r} is not supported by this engine", param=asked)


def check_ids(
    prompts: Iterable[Sequence[int]],
    params: SamplingParams | None,
    vocab_size: int,
    engines: Callable[[], Iterable[EngineStatus]],
) -> None:
    """Look at what names tokens, if an engine is of another make.

    Raises InvalidRequestError for an id that the model does not have, and for log-probabilities of more than all ids.
    """
    named: list[tuple[str, Iterable[int]]] = [("prompt", prompt) for prompt in prompts]
    named += [(name, getattr(params, name, None) or ()) for name in _IDS]
    unknown = next(((name, worst) for name, ids in named if (worst := max(ids, default=0)) >= vocab_size), None)
    if unknown is not None and not all(map(is_ours, engines())):
        name, worst = unknown
        raise InvalidRequestError(f"{name}: there is no token {worst}; the model has {vocab_size}", param=name)
    many = next((name for name in _COUNTS if (getattr(params, name, None) or 0) > vocab_size), None)
    if many is not None and not all(map(is_ours, engines())):
        raise InvalidRequestError(f"{many}: the model has no more than {vocab_size} tokens", param=many)


def is_ours(engine: EngineStatus) -> bool:
    """Whether an engine is hosted by muro, as far as it has said."""
    return engine.ready is None or engine.ready.muro is not None


def _first_asked(params: SamplingParams, standing: Standing) -> str | None:
    for name in _SAMPLING:
        value = getattr(params, name)
        # An empty list or map asks for nothing; but the number 0 may.
        if value is not None and value != getattr(_NEUTRAL, name) and value not in ([], {}):
            return name
    return "priority" if standing.priority else None


def _honours(engine: EngineStatus) -> bool:
    ready = engine.ready
    return ready is None or ready.muro is None or SAMPLING_OPTIONS in ready.muro.features
