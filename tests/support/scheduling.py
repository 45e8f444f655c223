"""What holds of a scheduler at every moment, whatever it is given: checked from its requests and its pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from muro.core.blocks import BlockPool
from muro.core.options import SchedulerConfig
from muro.core.request import Request, RequestStatus
from muro.core.scheduler import UNKNOWN_TOKEN, ScheduledStep


def check_blocks(pool: BlockPool, requests: Iterable[Request]) -> None:
    """Each block is free or held by as many tables as the pool says, and only those who run hold any."""
    held: Counter[int] = Counter()
    for request in requests:
        assert request.status is RequestStatus.RUNNING or not request.block_table
        assert len(set(request.block_table)) == len(request.block_table), "a block is twice in one table"
        assert request.capacity == len(request.block_table) * pool.block_size
        assert request.num_computed_tokens <= request.num_scheduled_tokens <= request.capacity
        held.update(request.block_table)
    assert [pool.holders(block) for block in range(pool.num_blocks)] == [held[b] for b in range(pool.num_blocks)]
    assert len(held) + pool.num_free == pool.num_blocks
    free = pool.free_blocks()
    assert len(free) == len(set(free)) == pool.num_free and not set(free) & set(held), "a block was freed twice"


def check_plan(step: ScheduledStep, config: SchedulerConfig, block_size: int) -> None:
    """The budget holds, and every sequence goes on where it stopped, in blocks that nobody else holds."""
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
