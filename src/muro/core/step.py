"""One step as the scheduler keeps it until its result comes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from muro.core.plan import SchedulerOutput, SequencePlan
from muro.core.request import Request


class ScheduledStep(msgspec.Struct):
    """A plan, and the requests that stand behind its sequences, which may leave before its result comes.

    The first `num_decodes` compute one token each and want one row of logits; chunks of prompts follow.
    """

    plan: SchedulerOutput
    requests: list[Request]
    num_decodes: int = 0
    num_prompt_rows: int = 0
    """Rows of logits wanted for log-probabilities of prompts; never above `MAX_PROMPT_ROWS`."""
    num_hidden_rows: int = 0
    """Rows of hidden states wanted for pooling."""
    departures: int = 0
    """How many requests had left before it was scheduled: if it is more now, some of these may have."""

    def chunks(self) -> Iterator[tuple[SequencePlan, Request]]:
        """What follows the decodes."""
        return zip(self.plan.sequences[self.num_decodes :], self.requests[self.num_decodes :], strict=True)


def is_last_chunk(sequence: SequencePlan, request: Request) -> bool:
    """Whether a chunk is the last one, after which a token comes."""
    return sequence.num_computed_tokens + len(sequence.token_ids) == len(request.token_ids)
