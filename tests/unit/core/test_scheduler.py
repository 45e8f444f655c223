"""scheduler.py: who runs when, who gives way, and that the accounts of the cache are right after every move."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from muro.core.blocks import BlockPool
from muro.core.options import SchedulerConfig
from muro.core.request import Request, RequestStatus
from muro.core.sampling import NO_TOKEN, Sampled, Sampling
from muro.core.scheduler import MAX_PREEMPTIONS, UNKNOWN_TOKEN, Scheduler
from muro.errors import ConfigError, RequestFailedError
from muro.wire.output import EngineCoreOutput, EventType, FinishReason
from tests.support.scheduling import check_blocks, check_plan

GREEDY = Sampling(temperature=0.0)


class Bench:
    """A scheduler, its cache, and every request that it was ever given; each token that is sampled is a 7."""

    def __init__(
        self,
        *,
        blocks: int = 100,
        block_size: int = 4,
        seqs: int = 8,
        budget: int = 16,
        max_preemptions: int = MAX_PREEMPTIONS,
        **more: Any,
    ) -> None:
        self.pool = BlockPool(blocks, block_size)
        ticks = count()
        config = SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget, **more)
        self.scheduler = Scheduler(config, self.pool, lambda: float(next(ticks)), max_preemptions)
        self.requests: dict[str, Request] = {}
        self.config = config

    def add(self, request_id: str, prompt: int | list[int], output: int = 100, **more: Any) -> Request:
        """Take in a request; a number stands for as many tokens that no other prompt begins with."""
        if isinstance(prompt, int):
            prompt = [len(self.requests) + 100] + [1] * (prompt - 1)
        request = Request(request_id, prompt, GREEDY, max_length=len(prompt) + output, **more)
        self.requests[request_id] = request
        self.scheduler.add(request)
        return request

    def step(self, aborts: Iterable[str] = (), token: int = 7) -> tuple[dict[str, int], list[EngineCoreOutput]]:
        """One step: planned tokens by request, and the outputs."""
        step = self.scheduler.schedule()
        check_plan(step, self.config, self.pool.block_size)
        self.check()
        self.scheduler.abort(aborts)
        self.check()
        number = len(self.scheduler.draws(step))
        outputs = self.scheduler.update(step, Sampled([token] * number, [None] * number))
        self.check()
        return {s.request_id: len(s.token_ids) for s in step.plan.sequences}, outputs

    def finish(self) -> list[EngineCoreOutput]:
        """Step until nothing is left."""
        outputs = []
        while len(self.scheduler):
            outputs += self.step()[1]
        return outputs

    def check(self) -> None:
        check_blocks(self.pool, self.requests.values())
        assert sum(r.status is RequestStatus.RUNNING for r in self.requests.values()) <= self.config.max_num_seqs


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
    bench = Bench(blocks=4, block_size=2, enable_prefix_caching=False)
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


def test_smaller_priorities_run_first_and_ties_by_arrival() -> None:
    bench = Bench(seqs=1, scheduling_policy="priority")
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -7)):
        bench.add(name, prompt=1, output=1, priority=priority)
    assert [list(bench.step()[0]) for _ in range(4)] == [["urgent"], ["first"], ["second"], ["late"]]


def test_priorities_do_not_count_where_requests_run_first_come_first_served() -> None:
    bench = Bench(seqs=1)
    bench.add("first", prompt=1, output=1)
    bench.add("urgent", prompt=1, output=1, priority=-7)
    assert [list(bench.step()[0]) for _ in range(2)] == [["first"], ["urgent"]]


def test_prompts_of_smaller_priority_get_the_budget_first_but_decoding_goes_on() -> None:
    bench = Bench(budget=8, scheduling_policy="priority")
    bench.add("decoding", prompt=1, priority=9)
    bench.add("long", prompt=20, priority=5)
    assert bench.step()[0] == {"long": 8}
    bench.add("urgent", prompt=9, priority=-1)
    planned = [bench.step()[0] for _ in range(4)]
    assert planned == [
        {"long": 8},
        {"long": 4, "urgent": 4},
        {"urgent": 5, "long": 1, "decoding": 1},
        {"urgent": 1, "long": 1, "decoding": 1},
    ]


def test_the_one_with_the_largest_priority_gives_way() -> None:
    bench = Bench(blocks=6, block_size=1, scheduling_policy="priority")
    bench.add("unimportant", prompt=1, output=5, priority=1)
    bench.step()
    bench.add("important", prompt=1, output=5)
    while not any(r.status is RequestStatus.PREEMPTED for r in bench.requests.values()):
        bench.step()
    assert bench.requests["unimportant"].status is RequestStatus.PREEMPTED
    bench.finish()


@pytest.mark.parametrize(("bound", "times"), [(1, 1), (2, 2), (100, 4)])
def test_whoever_was_preempted_often_enough_is_not_preempted_again(bound: int, times: int) -> None:
    bench = Bench(
        blocks=24, block_size=1, scheduling_policy="priority", enable_prefix_caching=False, max_preemptions=bound
    )
    victim = bench.add("victim", prompt=3, output=20, priority=1)
    number = 0
    while victim.status is not RequestStatus.FINISHED_LENGTH_CAPPED:
        if len(bench.scheduler) == 1 and victim.status is RequestStatus.RUNNING:
            number += 1
            bench.add(str(number), prompt=2, output=22)  # there is always somebody more important
        bench.step()
    assert victim.num_preemptions == times
    bench.finish()


class Gate:
    """Blocks a request until it is opened, or says why it stays closed."""

    phase = "grammar"

    def __init__(self) -> None:
        self.open = False
        self.error: RequestFailedError | None = None

    def over(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.open


def test_a_blocked_request_waits_without_holding_others() -> None:
    bench, gate = Bench(seqs=1), Gate()
    blocked = bench.add("blocked", prompt=1, output=1, blocked_on=gate)
    assert (bench.scheduler.phase(), bench.step()[0]) == ("grammar", {})
    bench.add("other", prompt=1, output=2)
    assert bench.scheduler.phase() is None
    assert bench.step()[0] == {"other": 1}
    stats = bench.scheduler.stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.num_skipped_waiting_reqs) == (1, 0, 1)
    gate.open = True
    bench.add("later", prompt=1, output=1)
    assert [bench.step()[0] for _ in range(3)] == [{"other": 1}, {"blocked": 1}, {"later": 1}]
    assert blocked.blocked_on is None


def test_a_blocked_request_ends_with_the_error_of_what_it_waited_for() -> None:
    bench, gate = Bench(), Gate()
    bench.add("blocked", prompt=1, blocked_on=gate)
    bench.add("aborted", prompt=1, blocked_on=gate)
    bench.scheduler.abort(["aborted"])
    gate.error = RequestFailedError("no such grammar")
    bench.step()
    (ended,) = bench.scheduler.take_ended()
    assert (ended.request_id, ended.finish_reason) == ("blocked", FinishReason.ERROR)
    assert ended.error is not None and "no such grammar" in ended.error.message
    assert len(bench.scheduler) == 0


def test_a_second_request_that_begins_alike_computes_the_rest_only() -> None:
    bench = Bench(block_size=4, budget=64)
    shared = list(range(21))
    bench.add("first", [*shared, 50], output=1)
    assert bench.step()[0] == {"first": 22}
    bench.add("second", [*shared, 60, 61], output=1)
    planned, (output,) = bench.step()
    assert planned == {"second": 3}
    account = output.prefill_stats
    assert account is not None
    assert (account.num_prompt_tokens, account.num_cached_tokens, account.num_local_cached_tokens) == (23, 20, 20)
    assert (account.num_computed_tokens, account.num_external_cached_tokens) == (3, 0)
    stats = bench.scheduler.stats().prefix_cache_stats
    assert (stats.requests, stats.queries, stats.hits) == (2, 45, 20)
    assert bench.scheduler.stats().prefix_cache_stats.requests == 0


def test_nothing_is_found_after_a_reset_and_what_runs_may_go_on_or_begin_again() -> None:
    bench = Bench(block_size=4)
    one = bench.add("one", [5] * 9)
    bench.step()
    bench.scheduler.reset_prefix_cache()
    bench.add("two", [5] * 9, output=1)
    assert bench.step()[0] == {"one": 1, "two": 9}
    bench.scheduler.preempt_all()
    assert (one.status, one.num_preemptions) == (RequestStatus.PREEMPTED, 0)
    assert bench.step()[0] == {"one": 3}, "what two left is of the new time"
    assert bench.scheduler.stats().prefix_cache_stats.reset


def test_what_is_scheduled_ahead_is_settled_when_the_tokens_are_known() -> None:
    bench = Bench(budget=8)
    for name, output in (("stays", 9), ("ends", 2), ("aborted", 9)):
        bench.add(name, prompt=2, output=output)
    bench.step()
    step = bench.scheduler.schedule()
    ahead = bench.scheduler.schedule()
    assert [s.token_ids for s in ahead.plan.sequences] == [[UNKNOWN_TOKEN]] * 2, "one must end before"
    bench.scheduler.abort(["aborted"])
    bench.scheduler.update(step, Sampled([7] * 3, [None] * 3))
    bench.scheduler.settle(ahead)
    assert [(s.request_id, s.token_ids) for s in ahead.plan.sequences] == [("stays", [7])]
    assert (ahead.num_decodes, ahead.plan.total_tokens) == (1, 1)
    bench.check()


def test_a_cancelled_step_is_scheduled_again() -> None:
    bench = Bench(budget=4, seqs=4)
    bench.add("a", prompt=6)
    step, ahead = bench.scheduler.schedule(), bench.scheduler.schedule()
    assert [len(s.plan.sequences[0].token_ids) for s in (step, ahead)] == [4, 2]
    bench.scheduler.cancel(ahead)
    bench.scheduler.cancel(step)
    assert [bench.step()[0] for _ in range(3)] == [{"a": 4}, {"a": 2}, {"a": 1}]


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
