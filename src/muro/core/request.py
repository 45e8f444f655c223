"""One request inside the engine: its tokens, its limits, its state, and the rule by which it ends.

Does not decide when it runs (`scheduler.py`) nor which token comes next (`sampling.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

from muro.core.grammar import GrammarState
from muro.core.pooling import Pooling
from muro.core.sampling import Draw, PromptLogprobs, SamplerState, Sampling
from muro.core.sampling.settings import History
from muro.errors import InternalError
from muro.wire.output import EngineCoreEvent, EventType, FinishReason

Ended = tuple[FinishReason, int | str | None]
"""How a request ended: finish reason, and stop reason: the stop token that did it, or a word for a repetition."""

REPETITION_DETECTED = "repetition_detected"

Rank = tuple[int, int]
"""Priority and number of arrival: smaller runs first."""


class Blocker(Protocol):
    """What a request waits for before it may run, such as a grammar; given as `blocked_on`. Asked once per step."""

    @property
    def phase(self) -> str:
        """What it is, as in `EngineCore.phase`."""
        ...

    def over(self) -> bool:
        """Whether the request may run now. Raises the `RequestError` with which it ends instead."""
        ...


class RequestStatus(enum.Enum):
    """Where a request stands. The finished ones are final."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "finished: stop"
    FINISHED_LENGTH_CAPPED = "finished: length"
    FINISHED_REPETITION = "finished: repetition"
    FINISHED_ABORTED = "finished: abort"
    FINISHED_ERROR = "finished: error"


_ENDED_EARLY = frozenset({RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR})
_ENDED = _ENDED_EARLY | {
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
}

TRANSITIONS: Mapping[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.RUNNING, RequestStatus.BLOCKED}) | _ENDED_EARLY,
    RequestStatus.BLOCKED: frozenset({RequestStatus.WAITING}) | _ENDED_EARLY,
    RequestStatus.RUNNING: frozenset({RequestStatus.PREEMPTED}) | _ENDED,
    # The step that ran when it was preempted may have given it its last token.
    RequestStatus.PREEMPTED: frozenset({RequestStatus.RUNNING}) | _ENDED,
    RequestStatus.FINISHED_STOPPED: frozenset(),
    RequestStatus.FINISHED_LENGTH_CAPPED: frozenset(),
    RequestStatus.FINISHED_REPETITION: frozenset(),
    RequestStatus.FINISHED_ABORTED: frozenset(),
    RequestStatus.FINISHED_ERROR: frozenset(),
}

FINISHED: Mapping[FinishReason, RequestStatus] = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
    FinishReason.REPETITION: RequestStatus.FINISHED_REPETITION,
}


class Request:
    """A request that passed admission.

    `token_ids` holds prompt and output in one list, as the cache sees them. The output starts at index
    `output_start`, which lies inside the prompt when the request continues one that ran elsewhere (resumed tokens).
    All limits are kept as lengths of `token_ids`, so that a step compares integers and computes nothing.

    `sampler_state` is made when it is first needed, from the tokens alone. `prompt_logprobs` collects what the first
    output is to carry, `pooling` what is to become a vector where no output is wanted. `skip_reading_prefix_cache`
    says that all tokens must be computed, as for those. `grammar` says what structured output allows; until it is
    compiled, the request is `blocked_on` it.
    """

    __slots__ = (
        "best_only",
        "block_hashes",
        "block_table",
        "blocked_on",
        "cache_salt",
        "capacity",
        "check_length",
        "constant_draw",
        "end_token_ids",
        "eos_token_id",
        "events",
        "grammar",
        "has_news",
        "hash_secret",
        "lora_id",
        "max_length",
        "min_length",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_kept_blocks",
        "num_preemptions",
        "num_prompt_tokens",
        "num_scheduled_tokens",
        "output_start",
        "pooling",
        "priority",
        "prompt_logprobs",
        "queue_timeout",
        "rank",
        "reported",
        "request_id",
        "sampler_state",
        "sampling",
        "skip_reading_prefix_cache",
        "status",
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
        prompt_logprobs: PromptLogprobs | None = None,
        pooling: Pooling | None = None,
        skip_reading_prefix_cache: bool = False,
        trace_headers: dict[str, str] | None = None,
        queue_timeout: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        lora_id: int = 0,
        grammar: GrammarState | None = None,
        blocked_on: Blocker | None = None,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.output_start = self.num_prompt_tokens - num_resumed_tokens
        self.sampling = sampling
        # Where neither the position nor the tokens so far matter, one draw is as good as another.
        constant = sampling.is_greedy and sampling.history is None and grammar is None
        self.constant_draw = Draw(sampling, 0) if constant else None
        self.best_only = (
            self.constant_draw is not None and prompt_logprobs is None and pooling is None and not sampling.reads_row
        )
        """Whether nothing is wanted of logits but which id has the highest."""
        self.max_length = max_length
        self.min_length = self.output_start + min_tokens
        self.eos_token_id = eos_token_id
        self.end_token_ids = stop_token_ids if eos_token_id is None else stop_token_ids | {eos_token_id}
        watched = sampling.history is not None and sampling.history.repetition is not None
        self.check_length = 0 if watched or grammar is not None else max_length
        """From which length on `ended` must be asked after every token."""
        self.prompt_logprobs = prompt_logprobs
        self.pooling = pooling
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.sampler_state: SamplerState | None = None
        self.trace_headers = trace_headers
        self.queue_timeout = queue_timeout
        self.priority = priority
        self.grammar = grammar
        self.blocked_on = blocked_on
        self.cache_salt = cache_salt
        self.lora_id = lora_id
        self._begin()

    def _begin(self) -> None:
        """What others keep here."""
        self.status = RequestStatus.WAITING
        # Whose turn it is: kept by the queues.
        self.rank: Rank = (0, 0)
        self.num_preemptions = 0
        # What is in the cache: kept by the scheduler, which may run a step ahead of what is computed.
        self.num_computed_tokens = 0
        self.num_scheduled_tokens = 0
        self.block_table: list[int] = []
        self.capacity = 0
        """Tokens for which the block table has room."""
        # What others may share of it, and it of others'.
        self.hash_secret: bytes | None = None
        self.block_hashes: list[bytes] = []
        self.num_kept_blocks = 0
        """How many blocks of the table others can find."""
        self.num_cached_tokens = 0
        """Tokens of the prompt that were in the cache when it first ran."""
        # What is still to be told with the next output.
        self.events: list[EngineCoreEvent] = []
        self.reported = False
        """Whether an output was given."""
        self.has_news = True

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output so far, resumed ones included: the position of the next one."""
        return len(self.token_ids) - self.output_start

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that are known but not in the cache; 1 for a request that is decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        return self.status in _ENDED

    def draw(self) -> Draw:
        """How to choose the next token. What a grammar allows of it goes into `Draw.mask`, here."""
        if self.constant_draw is not None:
            return self.constant_draw
        history = self.sampling.history
        if history is None:
            draw = Draw(self.sampling, len(self.token_ids) - self.output_start)
        else:
            draw = self._state(history).draw(self.sampling, self.token_ids)
        if self.grammar is not None:
            draw.mask = self.grammar.mask(self.token_ids)
        return draw

    def logits_wanted(self, num_computed: int, end: int) -> int:
        """For how many of the last of the tokens `num_computed` ... `end` logits are wanted.

        To sample: for the last known token. For log-probabilities of the prompt: for every token of it, each once.
        """
        if self.pooling is not None:
            return 0
        prompt = self.prompt_logprobs
        if prompt is None or not self.wants_prompt_rows:
            return 1 if end == len(self.token_ids) else 0
        return max(0, end - max(num_computed, len(prompt)))

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether log-probabilities of the prompt were asked for and are not complete."""
        prompt = self.prompt_logprobs
        return prompt is not None and len(prompt) < self.num_prompt_tokens - 1

    def become(self, status: RequestStatus) -> None:
        """Change state. A change that the table does not list is a bug of ours: `InternalError`."""
        if status not in TRANSITIONS[self.status]:
            raise InternalError(f"request {self.request_id} cannot go from {self.status.value} to {status.value}")
        self.status = status

    def record(self, event: EventType, now: float) -> None:
        """Note an event for the next output."""
        self.events.append(EngineCoreEvent(event, now))
        self.has_news = True

    def append(self, token_id: int) -> Ended | None:
        """Take the next token; says how the request ends if it is the last one (protocol section 8).

        The bound on the length holds even below `min_tokens`: past it there is no room in the cache. So does the end of
        a grammar, past which nothing is allowed but the end of sequence.
        """
        tokens = self.token_ids
        tokens.append(token_id)
        return self.ended() if token_id in self.end_token_ids or len(tokens) >= self.check_length else None

    def ended(self) -> Ended | None:
        """How the request ends with its last token, if it does: `append` in all cases, fast or not."""
        tokens = self.token_ids
        token_id, length = tokens[-1], len(tokens)
        if token_id in self.end_token_ids and length >= self.min_length:
            return FinishReason.STOP, None if token_id == self.eos_token_id else token_id
        if self.grammar is not None and self.grammar.is_complete(tokens) and not self._says_end_itself():
            return FinishReason.STOP, None
        if length >= self.max_length:
            return FinishReason.LENGTH, None
        if (history := self.sampling.history) is not None and history.repetition is not None:
            state = self._state(history)
            state.follow(tokens)
            if state.is_repeating and length >= self.min_length:
                return FinishReason.REPETITION, REPETITION_DETECTED
        return None

    def _says_end_itself(self) -> bool:
        """Whether the end of sequence, the one token that may follow a complete grammar, will be its last.

        Front-ends of vLLM take the last token of an output that stopped without a reason for that, and do not show it.
        """
        if self.grammar is None or not self.grammar.has_end or len(self.token_ids) < self.min_length:
            return False
        allowed = self.sampling.allowed
        return allowed is None or self.eos_token_id in allowed

    def _state(self, history: History) -> SamplerState:
        if self.sampler_state is None:
            self.sampler_state = SamplerState(history, self.output_start)
        return self.sampler_state
