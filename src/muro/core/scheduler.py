"""What runs in the next step (continuous batching), and what becomes of its result.

Each step has a budget of tokens. Sequences that decode come first, one token each; then prompts that are under way,
in chunks; then waiting requests, in order of arrival. The budget is never smaller than the number of sequences, so
neither can decoding wait for prompts, nor prompts for decoding.

A request is admitted only when the cache has room for all its known tokens, so a prompt under way never runs out of
blocks. When a decoding one does, the running request that came last loses its blocks and is computed again later
("preemption by recomputation"). Preempting only in favour of older requests means that the oldest always goes on,
and since any single request fits into the cache, all finish.

Does not compute: logits and tokens are the business of the executor and of `sampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from muro.core.blocks import BlockPool
from muro.core.patience import Patience
from muro.core.plan import SchedulerOutput, SequencePlan
from muro.core.queues import RequestQueues
from muro.core.request import Ended, Request, RequestStatus
from muro.core.sampling import NO_TOKEN, Draw, Sampled
from muro.errors import ConfigError, DeadlineError, RequestFailedError
from muro.wire.failure import error_to_wire
from muro.wire.output import EngineCoreOutput, EventType, FinishReason, Logprobs
from muro.wire.stats import PrefillStats, SchedulerStats


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one step."""

    max_num_seqs: int = 256
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens per step; longer prompts are computed in chunks. Smaller: smoother for those who stream."""
    max_logprobs: int = 20
    """The most `logprobs` that a request may ask for; -1 for no bound."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs is {self.max_num_seqs}; it must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({self.max_num_seqs}), one token for each sequence that decodes"
            )
        if self.max_logprobs < -1:
            raise ConfigError(f"max_logprobs is {self.max_logprobs}; it must be -1 (no bound) or more")


class Scheduler:
    """Holds every unfinished request. `schedule` and `update` take turns; `add` and `abort` may come at any time."""

    def __init__(self, config: SchedulerConfig, blocks: BlockPool, clock: Callable[[], float]) -> None:
        self._config = config
        self._blocks = blocks
        self._clock = clock
        self._queues = RequestQueues()
        self._patience = Patience(self._queues)
        self._expired: list[EngineCoreOutput] = []
        self._steps = 0

    def __len__(self) -> int:
        return len(self._queues) + len(self._expired)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request with this id."""
        return self._queues.get(request_id)

    def add(self, request: Request) -> None:
        """Take a request over; its id must be new."""
        if self._queues.get(request.request_id) is not None:
            raise RequestFailedError(f"request id {request.request_id} is in use", request_id=request.request_id)
        now = self._clock()
        request.record(EventType.QUEUED, now)
        self._queues.add(request)
        self._patience.add(request, now)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests, in any state, also between `schedule` and `update`; unknown ids are ignored."""
        for request_id in request_ids:
            if request := self._queues.get(request_id):
                self._finish(request, FinishReason.ABORT)

    def schedule(self) -> SchedulerOutput:
        """Choose what to compute now; empty only if there is no request that did not wait too long."""
        if self._patience:
            self._expire()
        sequences: list[SequencePlan] = []
        prefills: list[Request] = []
        running = self._queues.running
        for request in list(running.values()):
            if request.status is not RequestStatus.RUNNING:
                continue
            length = len(request.token_ids)
            computed = request.num_computed_tokens
            table = request.block_table
            if length - computed > 1:
                prefills.append(request)
            elif self._blocks.reserve(table, length) or self._make_room(request):
                sequences.append(SequencePlan(request.request_id, request.token_ids[-1:], computed, table, 1))
        budget = self._config.max_num_batched_tokens - len(sequences)
        for request in prefills:
            if budget and request.status is RequestStatus.RUNNING:
                budget -= self._plan_chunk(request, budget, sequences)
        while budget and self._admit():
            budget -= self._plan_chunk(next(reversed(running.values())), budget, sequences)
        return SchedulerOutput(sequences, self._config.max_num_batched_tokens - budget)

    def take_expired(self) -> list[EngineCoreOutput]:
        """The last outputs of requests that waited too long, each once."""
        expired, self._expired = self._expired, []
        return expired

    def draws(self, plan: SchedulerOutput) -> list[Draw | None]:
        """How to choose the next token, for each sampled sequence of `plan`; None for those aborted meanwhile."""
        running = self._queues.running
        draws: list[Draw | None] = []
        for sequence in plan.sequences:
            if sequence.num_logits:
                request = running.get(sequence.request_id)
                draws.append(None if request is None else request.draw())
        return draws

    def update(self, plan: SchedulerOutput, sampled: Sampled) -> list[EngineCoreOutput]:
        """Book the result of `plan`: at most one output for each of its requests."""
        self._steps += 1
        running = self._queues.running
        outputs: list[EngineCoreOutput] = []
        row = -1
        for sequence in plan.sequences:
            if sequence.num_logits:
                row += 1
            request = running.get(sequence.request_id)
            if request is None:
                continue
            request.num_computed_tokens += len(sequence.token_ids)
            if not sequence.num_logits:
                continue
            token_id = sampled.token_ids[row]
            if token_id == NO_TOKEN:
                output = self._output(request, [], None)
                output.error = error_to_wire(RequestFailedError("the model gave no usable score for the next token"))
                ended: Ended | None = (FinishReason.ERROR, None)
            else:
                output = self._output(request, [token_id], sampled.logprobs[row])
                ended = request.append(token_id)
            if ended:
                output.finish_reason, output.stop_reason = ended
                self._finish(request, ended[0])
            outputs.append(output)
        return outputs

    def stats(self) -> SchedulerStats:
        """The state after the last step."""
        return SchedulerStats(
            num_running_reqs=len(self._queues.running),
            num_waiting_reqs=len(self._queues.waiting),
            step_counter=self._steps,
            kv_cache_usage=self._blocks.usage,
        )

    def _expire(self) -> None:
        for request in self._patience.over(self._clock()):
            output = self._output(request, [], None)
            what = f"the request did not run within {request.queue_timeout:g} s of its arrival here (queue timeout)"
            output.finish_reason, output.error = FinishReason.ERROR, error_to_wire(DeadlineError(what))
            self._finish(request, FinishReason.ERROR)
            self._expired.append(output)

    def _make_room(self, request: Request) -> bool:
        """Preempt from the end until `request` can grow; false if it had to go itself."""
        while True:
            victim = self._queues.preempt_last()
            victim.num_computed_tokens = 0
            self._blocks.release(victim.block_table)
            victim.record(EventType.PREEMPTED, self._clock())
            if victim is request:
                return False
            if self._blocks.reserve(request.block_table, len(request.token_ids)):
                return True

    def _admit(self) -> bool:
        """Let the first waiting request run, if there is room for it and for the others to grow."""
        running = self._queues.running
        request = self._queues.next_waiting()
        if request is None or len(running) >= self._config.max_num_seqs:
            return False
        # One block to spare for each running sequence: otherwise it would soon be preempted, its work in vain. This
        # also keeps out whoever was preempted in this very step, since that freed no more than it needs itself.
        length = len(request.token_ids)
        if self._blocks.num_free < self._blocks.blocks_for(length) + len(running):
            return False
        self._blocks.reserve(request.block_table, length)
        self._queues.admit()
        request.record(EventType.SCHEDULED, self._clock())
        return True

    def _plan_chunk(self, request: Request, budget: int, sequences: list[SequencePlan]) -> int:
        """Plan as much of the known tokens as the budget allows; returns how many."""
        computed = request.num_computed_tokens
        tokens = request.token_ids[computed : computed + budget]
        last = int(computed + len(tokens) == len(request.token_ids))
        sequences.append(SequencePlan(request.request_id, tokens, computed, request.block_table, last))
        return len(tokens)

    def _output(self, request: Request, token_ids: list[int], logprobs: Logprobs | None) -> EngineCoreOutput:
        """News of a request; the first one carries the account of its prompt."""
        output = EngineCoreOutput(request.request_id, token_ids, logprobs, trace_headers=request.trace_headers)
        if request.events:
            output.events = request.events
            request.events = []
        if not request.reported:
            request.reported = True
            num_tokens = request.num_prompt_tokens
            output.prefill_stats = PrefillStats(num_prompt_tokens=num_tokens, num_computed_tokens=num_tokens)
        return output

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self._queues.finish(request, reason)
        self._blocks.release(request.block_table)
