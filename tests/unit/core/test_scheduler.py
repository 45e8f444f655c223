"""scheduler.py: who runs when, who gives way, and that the accounts of the cache are right after every move."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.blocks import BlockPool
from muro.core.plan import SchedulerOutput
from muro.core.request import Request, RequestStatus
from muro.core.sampling import NO_TOKEN, Sampled, Sampling
from muro.core.scheduler import Scheduler, SchedulerConfig
from muro.errors import ConfigError, RequestFailedError
from muro.wire.output import EngineCoreOutput, EventType, FinishReason

GREEDY = Sampling(temperature=0.0)


class Bench:
    """A scheduler, its cache, and every request that it was ever given; each token that is sampled is a 7."""

    def __init__(self, *, blocks: int = 100, block_size: int = 4, seqs: int = 8, budget: int = 16) -> None:
        self.pool = BlockPool(blocks, block_size)
        ticks = count()
        config = SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget)
        self.scheduler = Scheduler(config, self.pool, lambda: float(next(ticks)))
        self.requests: dict[str, Request] = {}
        self.config = config

    def add(self, request_id: str, prompt: int, output: int = 100, queue_timeout: float | None = None) -> Request:
        length = prompt + output
        request = Request(request_id, [1] * prompt, GREEDY, max_length=length, queue_timeout=queue_timeout)
        self.requests[request_id] = request
        self.scheduler.add(request)
        return request

    def step(self, aborts: Iterable[str] = (), token: int = 7) -> tuple[dict[str, int], list[EngineCoreOutput]]:
        """One step: planned tokens by request, and the outputs."""
        plan = self.scheduler.schedule()
        self.check(plan)
        self.scheduler.abort(aborts)
        self.check()
        number = len(self.scheduler.draws(plan))
        outputs = self.scheduler.update(plan, Sampled([token] * number, [None] * number))
        self.check()
        return {s.request_id: len(s.token_ids) for s in plan.sequences}, outputs

    def check(self, plan: SchedulerOutput | None = None) -> None:
        tables = [r.block_table for r in self.requests.values()]
        used = [block for table in tables for block in table]
        assert len(used) == len(set(used)), "a block is in two tables"
        assert len(used) + self.pool.num_free == self.pool.num_blocks
        running = [r for r in self.requests.values() if r.status is RequestStatus.RUNNING]
        assert len(running) <= self.config.max_num_seqs
        for request in self.requests.values():
            assert (request.status is RequestStatus.RUNNING) or not request.block_table
        if plan is not None:
            assert plan.total_tokens == sum(len(s.token_ids) for s in plan.sequences)
            assert plan.total_tokens <= self.config.max_num_batched_tokens
            assert len({s.request_id for s in plan.sequences}) == len(plan.sequences)
            for sequence in plan.sequences:
                request = self.requests[sequence.request_id]
                start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + len(sequence.token_ids)
                assert request.status is RequestStatus.RUNNING and start == request.num_computed_tokens
                assert sequence.token_ids == request.token_ids[start:end] and sequence.token_ids
                assert sequence.num_logits == (end == len(request.token_ids))
                assert len(sequence.block_table) * self.pool.block_size >= end


def test_prompts_run_in_chunks_and_decoding_comes_first() -> None:
    bench = Bench(budget=10)
    bench.add("a", prompt=4)
    bench.add("b", prompt=21)
    bench.add("c", prompt=2)
    planned = [bench.step()[0] for _ in range(4)]
    assert planned == [{"a": 4, "b": 6}, {"a": 1, "b": 9}, {"a": 1, "b": 6, "c": 2}, {"a": 1, "b": 1, "c": 1}]


def test_no_more_than_max_num_seqs_run() -> None:
    bench = Bench(seqs=2)
    for name in "abc":
        bench.add(name, prompt=1, output=2)
    assert [set(bench.step()[0]) for _ in range(4)] == [{"a", "b"}, {"a", "b"}, {"c"}, {"c"}]


def test_a_prompt_always_advances_beside_a_full_house_of_decoding() -> None:
    bench = Bench(seqs=4, budget=4)
    for name in "abc":
        bench.add(name, prompt=1)
    bench.step()
    bench.add("long", prompt=5)
    assert [bench.step()[0] for _ in range(2)] == [{"a": 1, "b": 1, "c": 1, "long": 1}] * 2


def test_the_last_to_come_gives_way_and_is_computed_again() -> None:
    bench = Bench(blocks=4, block_size=2)
    bench.add("a", prompt=2, output=5)
    b = bench.add("b", prompt=2, output=4)
    planned = []
    outputs = []
    while len(bench.scheduler):
        step, news = bench.step()
        planned.append(step)
        outputs += news
    # a takes one block and leaves one to spare, b another one; at 3 tokens each both grow, at 5 a needs a third.
    assert planned[:2] == [{"a": 2, "b": 2}, {"a": 1, "b": 1}]
    assert {"b": 5} in planned, "b was computed again, prompt and output"
    assert [len([o for o in outputs if o.request_id == name]) for name in "ab"] == [5, 4]
    events = [event.type for o in outputs if o.request_id == "b" for event in o.events or ()]
    assert events == [EventType.QUEUED, EventType.SCHEDULED, EventType.PREEMPTED, EventType.SCHEDULED]
    assert b.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_a_prompt_under_way_can_be_preempted_too() -> None:
    bench = Bench(blocks=8, block_size=1, seqs=2, budget=2)
    bench.add("a", prompt=1, output=7)
    long = bench.add("long", prompt=6, output=1)
    assert [bench.step()[0] for _ in range(2)] == [{"a": 1, "long": 1}] * 2
    assert bench.step()[0] == {"a": 1}
    assert (long.status, long.num_computed_tokens) == (RequestStatus.PREEMPTED, 0)
    while len(bench.scheduler):
        bench.step()
    assert long.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_a_waiting_request_is_let_in_only_if_the_running_ones_can_still_grow() -> None:
    bench = Bench(blocks=3, block_size=4)
    bench.add("a", prompt=8)
    bench.add("b", prompt=4)
    assert bench.step()[0] == {"a": 8}
    bench.scheduler.abort(["a"])
    assert bench.step()[0] == {"b": 4}


def test_first_output_has_the_account_of_the_prompt_and_the_times() -> None:
    bench = Bench(budget=8)
    bench.add("a", prompt=9)
    assert bench.step()[1] == []
    (first,) = bench.step()[1]
    assert first.prefill_stats is not None
    assert (first.prefill_stats.num_prompt_tokens, first.prefill_stats.num_computed_tokens) == (9, 9)
    assert first.events is not None
    assert [(e.type, e.timestamp) for e in first.events] == [(EventType.QUEUED, 0.0), (EventType.SCHEDULED, 1.0)]
    (second,) = bench.step()[1]
    assert (second.prefill_stats, second.events, second.new_token_ids) == (None, None, [7])


def test_trace_headers_come_back() -> None:
    bench = Bench()
    bench.add("a", prompt=1).trace_headers = {"traceparent": "00-1"}
    assert [bench.step()[1][0].trace_headers for _ in range(2)] == [{"traceparent": "00-1"}] * 2


@pytest.mark.parametrize("state", ["waiting", "preempted", "prefill", "decode"])
@pytest.mark.parametrize("between", [False, True])
def test_abort_in_every_state(state: str, between: bool) -> None:
    bench = Bench(blocks=4, block_size=2, budget=8)
    a = bench.add("a", prompt=2)
    victim = bench.add("victim", prompt={"waiting": 8, "prefill": 4}.get(state, 2))
    if state == "prefill":
        bench.config = bench.scheduler._config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=4)
    wanted = {
        "waiting": RequestStatus.WAITING,
        "preempted": RequestStatus.PREEMPTED,
        "prefill": RequestStatus.RUNNING,
        "decode": RequestStatus.RUNNING,
    }[state]
    bench.step()
    while victim.status is not wanted:
        bench.step()
    assert (victim.num_computed_tokens < victim.num_prompt_tokens) == (state != "decode")
    if not between:
        bench.scheduler.abort(["victim", "victim", "nobody"])
    _, outputs = bench.step(["victim", "nobody"] if between else [])
    assert "victim" not in {o.request_id for o in outputs} and victim.status is RequestStatus.FINISHED_ABORTED
    assert a.status is RequestStatus.RUNNING
    bench.scheduler.abort(["victim", "a"])
    stats = bench.scheduler.stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (0, 0, 0.0)
    assert bench.step() == ({}, [])


def test_stats_count() -> None:
    bench = Bench(blocks=10, block_size=4, seqs=1)
    bench.add("a", prompt=8)
    bench.add("b", prompt=1)
    bench.step()
    stats = bench.scheduler.stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.step_counter) == (1, 1, 1)
    assert stats.kv_cache_usage == pytest.approx(0.2)


def test_a_row_without_token_ends_its_request_with_an_error() -> None:
    bench = Bench()
    bench.add("a", prompt=1)
    (output,) = bench.step(token=NO_TOKEN)[1]
    assert (output.finish_reason, output.new_token_ids) == (FinishReason.ERROR, [])
    assert output.error is not None and output.error.code == RequestFailedError.code
    assert len(bench.scheduler) == 0 and bench.pool.usage == 0.0


def test_an_id_in_use_is_refused() -> None:
    bench = Bench()
    bench.add("a", prompt=1)
    with pytest.raises(RequestFailedError, match="in use"):
        bench.scheduler.add(Request("a", [1], GREEDY, max_length=3))
    assert len(bench.scheduler) == 1


@pytest.mark.parametrize(
    ("settings_", "match"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"max_logprobs": -2}, "max_logprobs"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings_: dict[str, int], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SchedulerConfig(**settings_)


@given(
    blocks=st.integers(5, 12),
    block_size=st.integers(1, 4),
    seqs=st.integers(1, 6),
    spare_budget=st.integers(0, 9),
    arrivals=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 1000), st.integers(1, 20), st.none() | st.integers(0, 30)),
        min_size=1,
        max_size=12,
    ),
)
@settings(max_examples=200, deadline=None)
def test_everything_ends_once_and_nothing_leaks(
    blocks: int,
    block_size: int,
    seqs: int,
    spare_budget: int,
    arrivals: list[tuple[int, int, int, int | None]],
) -> None:
    bench = Bench(blocks=blocks, block_size=block_size, seqs=seqs, budget=seqs + spare_budget)
    capacity = blocks * block_size
    ended: dict[str, int] = {}
    tokens: dict[str, int] = {}
    steps = 0
    last_arrival = max(when for when, *_ in arrivals)
    while len(bench.scheduler) or steps <= last_arrival:
        for number, (when, prompt, output, _) in enumerate(arrivals):
            if when == steps:
                length = 1 + prompt % capacity
                bench.add(str(number), length, min(output, capacity + 1 - length))
        aborts = [str(i) for i, (*_, abort) in enumerate(arrivals) if abort == steps and str(i) in bench.requests]
        alive = {i for i in bench.requests if bench.scheduler.get(i) is not None}
        _, outputs = bench.step(aborts)
        for output in outputs:
            assert output.request_id in alive - set(aborts)
            tokens[output.request_id] = tokens.get(output.request_id, 0) + len(output.new_token_ids)
            if output.finish_reason is not None:
                ended[output.request_id] = ended.get(output.request_id, 0) + 1
        steps += 1
        # Alone, each needs a step per token; recomputing for every older request's every token is far above any case.
        assert steps < last_arrival + 10 + 4 * len(arrivals) * capacity * 20, "no progress"
    for request_id, request in bench.requests.items():
        aborted = request.status is RequestStatus.FINISHED_ABORTED
        assert ended.get(request_id, 0) == (0 if aborted else 1)
        assert aborted or tokens[request_id] == request.max_length - request.num_prompt_tokens
    assert bench.pool.num_free == blocks
