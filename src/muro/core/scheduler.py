"""What runs in the next step (continuous batching), and what becomes of its result.

Each step has a budget of tokens. Sequences that decode come first, one token each; then prompts that are under way,
in chunks; then waiting requests; each of them by rank (`queues.py`). The budget is never smaller than the number of
sequences, so neither can decoding wait for prompts, nor prompts for decoding.

A request is admitted only when the cache has room for all its known tokens, so a prompt under way never runs out of
blocks. What the cache holds of its beginning is shared instead of computed, save at least one token, whose logits are
needed. When a decoding one runs out of blocks, the last running request by rank loses its own and is computed again
later ("preemption by recomputation"). So the first always goes on, and since any single request fits into the cache,
all finish. Whoever was preempted `MAX_PREEMPTIONS` times is put first and gets all the blocks that it may ever need:
it is not preempted again.

A step may be scheduled before the result of the one before it is known: `num_scheduled_tokens` of a request runs
ahead of `num_computed_tokens`, and the token that is still being computed stands as `UNKNOWN_TOKEN` in the plan until
`settle` fills it in. Steps must be executed in the order in which they were scheduled: so a block may have a new owner
in a step while the one before still writes into it for a request that has left.

Does not compute: logits and tokens are the business of the executor and of the sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from muro.core.blocks import BlockPool
from muro.core.kv_cache import KVCache
from muro.core.options import SchedulerConfig
from muro.core.patience import Patience
from muro.core.plan import SchedulerOutput, SequencePlan
from muro.core.pooling import Pooling
from muro.core.queues import RequestQueues
from muro.core.request import Request, RequestStatus
from muro.core.sampling import NO_TOKEN, Draw, Sampled
from muro.core.step import ScheduledStep, is_last_chunk
from muro.errors import DeadlineError, RequestError, RequestFailedError
from muro.wire.failure import error_to_wire
from muro.wire.output import EngineCoreOutput, EventType, FinishReason, Logprobs
from muro.wire.stats import PrefillStats, SchedulerStats

MAX_PREEMPTIONS = 8
MAX_PROMPT_ROWS = 256
"""Rows of logits of one step for log-probabilities of prompts: with 150,000 token ids they take 150 MB."""
UNKNOWN_TOKEN = -1

_RUNNING, _PREEMPTED = RequestStatus.RUNNING, RequestStatus.PREEMPTED


class Scheduler:
    """Holds every unfinished request. `add` and `abort` may come at any time, also between `schedule` and `update`.

    Args:
        config: order and bounds of what runs.
        blocks: the cache.
        clock: monotonic seconds, for events and deadlines.
        max_preemptions: how often one request may be preempted for others, at least once.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockPool,
        clock: Callable[[], float],
        max_preemptions: int = MAX_PREEMPTIONS,
    ) -> None:
        self._config = config
        self._clock = clock
        self._max_preemptions = max_preemptions
        self._cache = KVCache(blocks, prefix_caching=config.enable_prefix_caching)
        self._queues = RequestQueues(by_priority=config.scheduling_policy == "priority")
        self._patience = Patience(self._queues)
        self._ended: list[EngineCoreOutput] = []
        self._steps = 0
        self._departures = 0
        """How often a request has left, to wait again or for good."""
        self.num_preemptions = 0
        """How often a request had to leave and wait again."""

    def __len__(self) -> int:
        return len(self._queues) + len(self._ended)

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
        """Forget requests, in any state; unknown ids are ignored."""
        for request_id in request_ids:
            if request := self._queues.get(request_id):
                self._finish(request, FinishReason.ABORT)

    def schedule(self) -> ScheduledStep:
        """Choose what to compute next; empty if no request can run, or none but those that must end before."""
        if self._patience:
            self._expire()
        if self._queues.num_blocked:
            self._unblock()
        before = self._departures
        step = ScheduledStep(SchedulerOutput([], 0), [])
        prefills = self._plan_decodes(step)
        step.num_decodes = len(step.requests)
        budget = self._config.max_num_batched_tokens - step.num_decodes
        for request in prefills:
            if budget:
                budget -= self._plan_chunk(step, request, budget)
        # Where somebody has just lost the blocks, there is no room for others, nor for the loser to come back at once.
        if self._departures == before:
            while budget and (admitted := self._admit()):
                budget -= self._plan_chunk(step, admitted, budget)
        step.plan.total_tokens = self._config.max_num_batched_tokens - budget
        step.departures = self._departures
        return step

    def settle(self, step: ScheduledStep) -> None:
        """Bring a step that was scheduled ahead up to date: fill in tokens that were unknown, drop who has ended."""
        plan, requests = step.plan, step.requests
        # One who decodes computes its last token: that is the one that was unknown, or nothing was.
        for sequence, request in zip(plan.sequences[: step.num_decodes], requests, strict=False):
            sequence.token_ids[0] = request.token_ids[-1]
        if step.departures != self._departures:
            step.num_decodes = sum(request.status is _RUNNING for request in requests[: step.num_decodes])
            left = [pair for pair in zip(plan.sequences, requests, strict=True) if pair[1].status is _RUNNING]
            plan.sequences = [sequence for sequence, _ in left]
            step.requests = [request for _, request in left]
            plan.total_tokens = sum(len(sequence.token_ids) for sequence in plan.sequences)

    def cancel(self, step: ScheduledStep) -> None:
        """Nothing came of a step: the same work is scheduled again. Of two steps, cancel both."""
        for request in step.requests:
            if request.status is _RUNNING:
                request.num_scheduled_tokens = request.num_computed_tokens

    def take_ended(self) -> list[EngineCoreOutput]:
        """The last outputs of requests that ended without having run, each once."""
        ended, self._ended = self._ended, []
        return ended

    def draws(self, step: ScheduledStep) -> list[Draw | None]:
        """How to choose the next token, for each row of logits; None where none is to be chosen, or no more."""
        decodes = step.num_decodes
        draws = [
            (request.constant_draw or request.draw())
            if request.status is _RUNNING or request.status is _PREEMPTED
            else None
            for request in step.requests[:decodes]
        ]
        for sequence, request in step.chunks():
            if sequence.num_logits:
                draws += [None] * sequence.num_logits
                if is_last_chunk(sequence, request) and not request.is_finished:
                    draws[-1] = request.draw()
        return draws

    def update(self, step: ScheduledStep, sampled: Sampled) -> list[EngineCoreOutput]:
        """Book the result of a step: at most one output for each of its requests."""
        self._steps += 1
        outputs: list[EngineCoreOutput] = []
        row = step.num_decodes
        for request, token_id, logprobs in zip(step.requests[:row], sampled.token_ids, sampled.logprobs, strict=False):
            if request.status is _RUNNING:
                request.num_computed_tokens += 1
            elif request.status is not _PREEMPTED:
                continue
            if logprobs is not None or request.has_news or token_id == NO_TOKEN:
                outputs.append(self._book(request, token_id, logprobs))
                continue
            # The same without detours: this is what a step mostly consists of.
            output = EngineCoreOutput(request.request_id, [token_id])
            outputs.append(output)
            tokens = request.token_ids
            tokens.append(token_id)
            if (token_id in request.end_token_ids or len(tokens) >= request.check_length) and (
                ended := request.ended()
            ):
                output.finish_reason, output.stop_reason = ended
                self._finish(request, ended[0])
        for sequence, request in step.chunks():
            row += sequence.num_logits
            is_last = is_last_chunk(sequence, request)
            if request.status is _RUNNING:
                request.num_computed_tokens += len(sequence.token_ids)
                self._cache.keep(request)
            if not is_last or request.is_finished:
                continue
            if request.pooling is not None:
                outputs.append(self._give_vector(request, request.pooling))
            else:
                outputs.append(self._book(request, sampled.token_ids[row - 1], sampled.logprobs[row - 1]))
        return outputs

    def reset_prefix_cache(self) -> None:
        """Let no request find anything that was computed so far."""
        self._cache.forget()

    def preempt_all(self) -> None:
        """Let everything that runs be computed again. No step may be under way."""
        for request in list(self._queues.running()):
            self._preempt(request)

    def stats(self) -> SchedulerStats:
        """The state after the last step; prefix cache counts are those since the last call."""
        queues = self._queues
        return SchedulerStats(
            num_running_reqs=queues.num_running,
            num_waiting_reqs=queues.num_waiting,
            num_skipped_waiting_reqs=queues.num_blocked,
            step_counter=self._steps,
            kv_cache_usage=self._cache.usage,
            prefix_cache_stats=self._cache.take_stats(),
        )

    def phase(self) -> str | None:
        """What all requests wait for, if it is nothing that a step could bring about."""
        queues = self._queues
        blocked = queues.blocked() if queues.num_blocked == len(queues) else []
        return blocked[0].blocked_on.phase if blocked and blocked[0].blocked_on else None

    def _expire(self) -> None:
        for request in self._patience.over(self._clock()):
            what = f"the request did not run within {request.queue_timeout:.3g} s of its arrival here (queue timeout)"
            self._refuse(request, DeadlineError(what))

    def _unblock(self) -> None:
        for request in self._queues.blocked():
            try:
                if request.blocked_on is None or request.blocked_on.over():
                    self._queues.unblock(request)
            except RequestError as error:
                self._refuse(request, error)

    def _refuse(self, request: Request, error: RequestError) -> None:
        self._ended.append(self._fail(request, error))

    def _plan_decodes(self, step: ScheduledStep) -> list[Request]:
        """Plan one token for everybody who decodes; gives those with more known tokens to compute than that."""
        prefills: list[Request] = []
        sequences, requests = step.plan.sequences, step.requests
        for request in self._queues.running():  # which ends earlier if the last ones have to give way
            start = request.num_scheduled_tokens
            todo = len(request.token_ids) - start
            if todo == 1 and request.reported:
                token_id, end = request.token_ids[start], start + 1
            elif todo:
                prefills.append(request)
                continue
            elif (end := start + 1) < request.max_length:
                token_id = UNKNOWN_TOKEN
            else:
                continue  # the token that is being computed is its last
            if start >= request.capacity and not self._grow(request):
                break
            request.num_scheduled_tokens = end
            sequences.append(
                SequencePlan(request.request_id, [token_id], start, request.block_table, 1, 0, request.best_only)
            )
            requests.append(request)
        return prefills

    def _plan_chunk(self, step: ScheduledStep, request: Request, budget: int) -> int:
        """Plan as much of the known tokens as the budget allows; returns how many."""
        start = request.num_scheduled_tokens
        if request.wants_prompt_rows:
            budget = min(budget, MAX_PROMPT_ROWS - step.num_prompt_rows)
            if not budget:
                return 0
        tokens = request.token_ids[start : start + budget]
        request.num_scheduled_tokens = end = start + len(tokens)
        num_logits = request.logits_wanted(start, end)
        if request.wants_prompt_rows:
            step.num_prompt_rows += num_logits
        sequence = SequencePlan(request.request_id, tokens, start, request.block_table, num_logits)
        sequence.best_only = request.best_only and num_logits == 1
        if request.pooling is not None:
            sequence.num_hidden = request.pooling.hidden_wanted(start, end, len(request.token_ids))
            step.num_hidden_rows += sequence.num_hidden
        step.plan.sequences.append(sequence)
        step.requests.append(request)
        return len(tokens)

    def _grow(self, request: Request) -> bool:
        """Give a running request one block more, at the cost of the last ones; false if it had to go itself."""
        self._cache.keep(request)
        while not self._cache.grow(request):
            victim = self._queues.last_running()
            victim.num_preemptions += 1
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._departures += 1
        self.num_preemptions += 1
        self._cache.let_go(request)
        self._queues.preempt(request, put_first=request.num_preemptions >= self._max_preemptions)
        request.record(EventType.PREEMPTED, self._clock())

    def _admit(self) -> Request | None:
        """Let the first waiting request run, if there is room for it and for the others to grow."""
        queues = self._queues
        request = queues.next_waiting()
        if request is None or queues.num_running >= self._config.max_num_seqs:
            return None
        room = request.max_length - 1 if queues.is_first(request) else len(request.token_ids)
        # One block to spare for each running sequence: otherwise it would soon be preempted, its work in vain.
        if not self._cache.admit(request, room, queues.num_running):
            return None
        queues.admit(request)
        request.record(EventType.SCHEDULED, self._clock())
        return request

    def _book(self, request: Request, token_id: int, logprobs: Logprobs | None) -> EngineCoreOutput:
        """Give a request its next token."""
        if token_id == NO_TOKEN:
            return self._fail(request, _why_no_token(request))
        output = EngineCoreOutput(request.request_id, [token_id], logprobs)
        if request.has_news:
            self._tell(request, output)
        request.token_ids.append(token_id)
        self._end(request, output)
        return output

    def _end(self, request: Request, output: EngineCoreOutput) -> None:
        """Finish a request if its last token says so."""
        if ended := request.ended():
            output.finish_reason, output.stop_reason = ended
            self._finish(request, ended[0])

    def _give_vector(self, request: Request, pooling: Pooling) -> EngineCoreOutput:
        """Give a request what it was pooled into, its only output."""
        vector = pooling.vector()
        if vector is None:
            return self._fail(request, RequestFailedError("the model gave no usable hidden states"))
        output = EngineCoreOutput(request.request_id, [], pooling_output=vector, finish_reason=FinishReason.STOP)
        self._tell(request, output)
        self._finish(request, FinishReason.STOP)
        return output

    def _fail(self, request: Request, error: RequestError) -> EngineCoreOutput:
        output = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR, error=error_to_wire(error))
        self._tell(request, output)
        self._finish(request, FinishReason.ERROR)
        return output

    def _tell(self, request: Request, output: EngineCoreOutput) -> None:
        """Add what there is to say beside tokens; the first output carries the account of the prompt."""
        output.trace_headers = request.trace_headers
        output.events, request.events = request.events or None, []
        if not request.reported:
            request.reported = True
            prompt, cached = request.num_prompt_tokens, request.num_cached_tokens
            output.prefill_stats = PrefillStats(prompt, prompt - cached, cached, cached)
            if request.prompt_logprobs is not None and not request.wants_prompt_rows:
                output.new_prompt_logprobs_tensors = request.prompt_logprobs.result()
        request.has_news = request.trace_headers is not None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self._departures += 1
        self._cache.let_go(request)
        self._queues.finish(request, reason)


def _why_no_token(request: Request) -> RequestError:
    """The error for a request of whose logits none could be used."""
    if request.grammar is None:
        what = "no token can be chosen: the model gave no usable score for any that the request's options leave"
        return RequestFailedError(what)
    if request.grammar.error is not None:
        return request.grammar.error
    return RequestFailedError("no token is allowed: neither by the grammar nor by what else forbids some")
