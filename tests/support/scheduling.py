"""Schedules to run a scheduler through, and what must hold of it at every moment, whatever it is given."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import count

import msgspec

from muro.core.blocks import BlockPool
from muro.core.options import SchedulerConfig
from muro.core.request import Request, RequestStatus
from muro.core.sampling import Sampled, Sampling
from muro.core.scheduler import MAX_PREEMPTIONS, UNKNOWN_TOKEN, ScheduledStep, Scheduler
from muro.wire.output import EngineCoreOutput

STOP = 0
"""The token after which a request ends."""
GREEDY = Sampling(temperature=0.0)


class Arrival(msgspec.Struct, frozen=True):
    """A request, and what happens to it; times are numbers of steps."""

    when: int
    prompt: list[int]
    output: int
    priority: int = 0
    aborted: int | None = None
    blocked: int = 0
    salt: str | None = None


class Schedule(msgspec.Struct, frozen=True):
    """Everything that a scheduler is given."""

    arrivals: list[Arrival]
    num_blocks: int
    block_size: int
    config: SchedulerConfig
    failing: frozenset[int] = frozenset()
    """Steps of which nothing comes."""
    resets: frozenset[int] = frozenset()
    """Steps after which everything is to be computed again."""
    max_preemptions: int = MAX_PREEMPTIONS


class Until:
    """Blocks a request until a step."""

    phase = "grammar"

    def __init__(self, run: Run, step: int) -> None:
        self._run = run
        self._step = step

    def over(self) -> bool:
        return self._run.steps >= self._step


class Run:
    """One run of a schedule, checked at every step; `finish` checks what must hold at its end."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._config = schedule.config
        self.pool = BlockPool(schedule.num_blocks, schedule.block_size)
        ticks = count()
        self.scheduler = Scheduler(schedule.config, self.pool, lambda: float(next(ticks)), schedule.max_preemptions)
        self.requests: dict[str, Request] = {}
        self.ended: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.steps = 0
        self.seen: Counter[str] = Counter()
        """How often what the schedules are for has come up."""
        self._arrivals = sorted(enumerate(schedule.arrivals), key=lambda item: -item[1].when)
        self._aborts: defaultdict[int | None, list[str]] = defaultdict(list)
        for number, arrival in enumerate(schedule.arrivals):
            self._aborts[arrival.aborted].append(str(number))
        self._flight: ScheduledStep | None = None

    def finish(self) -> None:
        """Run until nothing is left. Everybody ends once, with as many tokens as were due, and holds nothing."""
        lengths = sum(len(a.prompt) + a.output for a in self._schedule.arrivals)
        limit = 100 + self._schedule.arrivals[-1].when + lengths * (self._schedule.max_preemptions + 2)
        while self._arrivals or self._flight or len(self.scheduler):
            self._arrive()
            self._step()
            self.steps += 1
            assert self.steps < limit, "somebody starves"
        for request_id, request in self.requests.items():
            aborted = request.status is RequestStatus.FINISHED_ABORTED
            assert self.ended[request_id] == (0 if aborted else 1)
            stopped = request.status is RequestStatus.FINISHED_STOPPED
            assert aborted or stopped or self.tokens[request_id] == request.max_length - request.num_prompt_tokens
            assert request.num_preemptions <= self._schedule.max_preemptions
            self.seen["preempted as often as may be"] += request.num_preemptions == self._schedule.max_preemptions
        stats = self.scheduler.stats()
        assert (self.pool.num_free, stats.kv_cache_usage) == (self.pool.num_blocks, 0.0)
        self.seen["hit"] += stats.prefix_cache_stats.hits
        self.seen["hit after preemption"] += stats.prefix_cache_stats.preempted_hits

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[-1][1].when <= self.steps:
            number, arrival = self._arrivals.pop()
            request = Request(
                str(number),
                arrival.prompt,
                GREEDY,
                max_length=len(arrival.prompt) + arrival.output,
                stop_token_ids=frozenset([STOP]),
                priority=arrival.priority,
                cache_salt=arrival.salt,
                blocked_on=Until(self, arrival.blocked) if arrival.blocked > self.steps else None,
            )
            self.requests[request.request_id] = request
            self.scheduler.add(request)

    def _step(self) -> None:
        """As the stepper does it."""
        scheduler = self.scheduler
        step = self._flight or self._plan()
        self._flight = None
        ahead = self._plan() if self._config.async_scheduling and step.requests else None
        if self.steps in self._schedule.failing:
            for cancelled in (ahead, step):
                if cancelled is not None:
                    scheduler.cancel(cancelled)
            return
        aborts = self._aborts.get(self.steps, [])
        scheduler.abort(aborts)
        self._take(scheduler.take_ended(), ())
        draws = scheduler.draws(step)
        assert len(draws) == sum(s.num_logits for s in step.plan.sequences)
        # Tokens depend on the request and the position alone.
        token_ids = [-1 if d is None else (7 * d.position + 3) % 11 for d in draws]
        for request in step.requests:
            if request.status is not RequestStatus.RUNNING:
                self.seen[f"{request.status.value} while its step ran"] += 1
        self._take(scheduler.update(step, Sampled(token_ids, [None] * len(draws))), aborts)
        if self.steps in self._schedule.resets:
            scheduler.reset_prefix_cache()
            scheduler.preempt_all()
        if ahead is not None:
            self.seen["unknown token"] += any(s.token_ids == [UNKNOWN_TOKEN] for s in ahead.plan.sequences)
            scheduler.settle(ahead)
            self._flight = ahead if ahead.requests else None
            if self._flight:
                check_plan(ahead, self._config, self.pool.block_size)
        check_blocks(self.pool, self.requests.values())

    def _plan(self) -> ScheduledStep:
        before = [r for r in self.requests.values() if r.status is RequestStatus.RUNNING]
        step = self.scheduler.schedule()
        check_plan(step, self._config, self.pool.block_size)
        check_turns(step, self.requests.values(), before)
        self.seen["chunk"] += any(not s.num_logits for s in step.plan.sequences)
        self.seen["preempted"] += any(r.status is RequestStatus.PREEMPTED for r in before)
        if not step.requests and self.scheduler.phase() is not None:
            self.seen["nobody can run"] += 1
        return step

    def _take(self, outputs: list[EngineCoreOutput], aborts: Iterable[str]) -> None:
        for output in outputs:
            assert output.request_id not in aborts and not self.ended[output.request_id]
            self.tokens[output.request_id] += len(output.new_token_ids)
            if output.finish_reason is not None:
                self.ended[output.request_id] += 1


def check_blocks(pool: BlockPool, requests: Iterable[Request]) -> None:
    """Each block is free or held by as many tables as the pool says, and only those who run hold any."""
    held = [0] * pool.num_blocks
    for request in requests:
        table = request.block_table
        if request.status is not RequestStatus.RUNNING:
            assert not table
            continue
        assert len(set(table)) == len(table), "a block is twice in one table"
        assert request.capacity == len(table) * pool.block_size
        assert request.num_computed_tokens <= request.num_scheduled_tokens <= request.capacity
        for block in table:
            held[block] += 1
    assert [pool.holders(block) for block in range(pool.num_blocks)] == held
    free = pool.free_blocks()
    assert len(free) == pool.num_free and set(free) == {block for block, holders in enumerate(held) if not holders}


def check_plan(step: ScheduledStep, config: SchedulerConfig, block_size: int) -> None:
    """The budget holds, and every sequence goes on where it stopped, in blocks that nobody else writes."""
    plan = step.plan
    assert plan.total_tokens == sum(len(s.token_ids) for s in plan.sequences) <= config.max_num_batched_tokens
    assert len({s.request_id for s in plan.sequences}) == len(plan.sequences) == len(step.requests)
    assert len(plan.sequences) <= config.max_num_seqs
    written: list[int] = []
    for number, (sequence, request) in enumerate(zip(plan.sequences, step.requests, strict=True)):
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + len(sequence.token_ids)
        assert request.status is RequestStatus.RUNNING and sequence.token_ids
        assert request.request_id == sequence.request_id and end == request.num_scheduled_tokens
        if sequence.token_ids == [UNKNOWN_TOKEN]:
            assert start == len(request.token_ids), "more than one token is unknown"
        else:
            assert sequence.token_ids == request.token_ids[start:end]
        assert sequence.num_logits == (end >= len(request.token_ids))
        assert number >= step.num_decodes or (len(sequence.token_ids), sequence.num_logits) == (1, 1)
        assert sequence.block_table is request.block_table and len(sequence.block_table) * block_size >= end
        written += sequence.block_table[start // block_size : -(-end // block_size)]
    assert len(written) == len(set(written)), "a block is written for two sequences"


def check_turns(step: ScheduledStep, requests: Iterable[Request], ran: list[Request]) -> None:
    """Nobody is passed over: all who decode are in, so is the first of the prompts, and who comes next is let in first.

    `step` was just scheduled; `ran` were running before.
    """
    planned, before = {id(request) for request in step.requests}, {id(request) for request in ran}
    left_out, waiting, admitted = [], [], []
    for request in requests:
        if request.status is RequestStatus.RUNNING:
            todo = len(request.token_ids) - request.num_scheduled_tokens
            if id(request) not in before:
                admitted.append(request.rank)
            if id(request) not in planned and todo:
                assert todo > 1 or not request.reported, "one who decodes was left out"
                left_out.append(request.rank)
            elif id(request) not in planned:
                assert request.num_scheduled_tokens + 1 >= request.max_length, "one who decodes was left out"
        elif request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            waiting.append(request.rank)
    chunks = [request.rank for request in step.requests[step.num_decodes :]]
    assert not left_out or (chunks and min(chunks) < min(left_out)), "the first of the prompts stands still"
    assert not (waiting and admitted) or max(admitted) < min(waiting), "somebody was let in out of turn"
