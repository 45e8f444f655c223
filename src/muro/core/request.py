"""One request inside the engine: its tokens, its limits, its state, and the rule by which it ends.

Does not decide when it runs (`scheduler.py`) nor which token comes next (`sampling.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from muro.core.sampling import Draw, Sampling
from muro.errors import InternalError
from muro.wire.output import EngineCoreEvent, EventType, FinishReason

Ended = tuple[FinishReason, int | None]
"""How a request ended: finish reason, and stop reason if a stop token did it."""


class RequestStatus(enum.Enum):
    """Where a request stands. The finished ones are final."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "finished: stop"
    FINISHED_LENGTH_CAPPED = "finished: length"
    FINISHED_ABORTED = "finished: abort"
    FINISHED_ERROR = "finished: error"


_ENDED_EARLY = frozenset({RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR})

TRANSITIONS: Mapping[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.RUNNING}) | _ENDED_EARLY,
    RequestStatus.RUNNING: frozenset(
        {RequestStatus.PREEMPTED, RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED}
    )
    | _ENDED_EARLY,
    RequestStatus.PREEMPTED: frozenset({RequestStatus.RUNNING}) | _ENDED_EARLY,
    RequestStatus.FINISHED_STOPPED: frozenset(),
    RequestStatus.FINISHED_LENGTH_CAPPED: frozenset(),
    RequestStatus.FINISHED_ABORTED: frozenset(),
    RequestStatus.FINISHED_ERROR: frozenset(),
}

FINISHED: Mapping[FinishReason, RequestStatus] = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
}


class Request:
    """A request that passed admission.

    `token_ids` holds prompt and output in one list, as the cache sees them. The output starts at index
    `output_start`, which lies inside the prompt when the request continues one that ran elsewhere (resumed tokens).
    All limits are kept as lengths of `token_ids`, so that a step compares integers and computes nothing.
    """

    __slots__ = (
        "banned",
        "block_table",
        "eos_token_id",
        "events",
        "max_length",
        "min_length",
        "num_computed_tokens",
        "num_prompt_tokens",
        "output_start",
        "queue_timeout",
        "reported",
        "request_id",
        "sampling",
        "status",
        "stop_token_ids",
        "token_ids",
        "trace_headers",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: Sampling,
        *,
        max_length: int,
        num_resumed_tokens: int = 0,
        min_tokens: int = 0,
        eos_token_id: int | None = None,
        stop_token_ids: frozenset[int] = frozenset(),
        banned: NDArray[np.intp] | None = None,
        trace_headers: dict[str, str] | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.output_start = self.num_prompt_tokens - num_resumed_tokens
        self.sampling = sampling
        self.max_length = max_length
        self.min_length = self.output_start + min_tokens
        self.eos_token_id = eos_token_id
        self.stop_token_ids = stop_token_ids
        self.banned = banned
        self.trace_headers = trace_headers
        self.queue_timeout = queue_timeout
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.events: list[EngineCoreEvent] = []
        self.reported = False

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output so far, resumed ones included: the position of the next one."""
        return len(self.token_ids) - self.output_start

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that are known but not in the cache; 1 for a request that is decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    def draw(self) -> Draw:
        """How to choose the next token; stop tokens are banned while fewer than `min_tokens` exist."""
        length = len(self.token_ids)
        return Draw(self.sampling, length - self.output_start, self.banned if length < self.min_length else None)

    def become(self, status: RequestStatus) -> None:
        """Change state. A change that the table does not list is a bug of ours: `InternalError`."""
        if status not in TRANSITIONS[self.status]:
            raise InternalError(f"request {self.request_id} cannot go from {self.status.value} to {status.value}")
        self.status = status

    def record(self, event: EventType, now: float) -> None:
        """Note an event for the next output."""
        self.events.append(EngineCoreEvent(event, now))

    def append(self, token_id: int) -> Ended | None:
        """Take the next token; says how the request ends if it is the last one (protocol section 8).

        The bound on the length holds even below `min_tokens`: past it there is no room in the cache.
        """
        tokens = self.token_ids
        tokens.append(token_id)
        length = len(tokens)
        if length >= self.min_length:
            if token_id == self.eos_token_id:
                return FinishReason.STOP, None
            if token_id in self.stop_token_ids:
                return FinishReason.STOP, token_id
        if length >= self.max_length:
            return FinishReason.LENGTH, None
        return None
