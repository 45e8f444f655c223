"""Requests as tests need them."""

from typing import Any

from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason
from muro.wire.request import EngineCoreRequest, SamplingParams

FOREVER = 50_000
"""More tokens than any test waits for."""


def ask(request_id: str, max_tokens: int = 3, prompt: list[int] | None = None, **sampling: Any) -> EngineCoreRequest:
    """A request for `max_tokens` tokens; the echo engine answers with its prompt, again and again."""
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    return EngineCoreRequest(request_id, [7, 8, 9] if prompt is None else prompt, sampling_params=params)


def faulty(request_id: str, fault: str, max_tokens: int = 3) -> EngineCoreRequest:
    """A request that makes the faulty engine go wrong."""
    return ask(request_id, max_tokens, extra_args={"fault": fault})


def output(request_id: str, *tokens: int, finish: FinishReason | None = None) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, list(tokens), finish_reason=finish)


def outputs(*items: EngineCoreOutput, rank: int = 0, **more: Any) -> EngineCoreOutputs:
    """A message of an engine."""
    return EngineCoreOutputs(engine_index=rank, outputs=list(items), **more)
