"""Which rank gets a request: by load, by what it has computed, or because the caller says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import InternalError, InvalidRequestError, OverloadedError
from muro.ids import EngineRank
from muro.parallel.balance import STALE_AFTER, Balancer
from muro.parallel.prefix import PrefixIndex

RANKS = [EngineRank(rank) for rank in range(4)]
PROMPT = list(range(64))


def chosen(balancer: Balancer, times: int, now: float = 0.0) -> list[int]:
    return [balancer.choose(now) for _ in range(times)]


def test_ties_go_round() -> None:
    balancer = Balancer(RANKS)
    assert chosen(balancer, 6) == [0, 1, 2, 3, 0, 1]
    for rank in (0, 1, 2, 3, 0, 1):
        balancer.finished(EngineRank(rank))
    assert chosen(balancer, 3) == [2, 3, 0], "not always the same one first"


def test_front_ends_begin_at_different_ranks() -> None:
    assert [Balancer(RANKS, clients=2, client_index=i).choose(0.0) for i in (0, 1)] == [0, 2]


def test_the_least_to_do() -> None:
    balancer = Balancer(RANKS)
    chosen(balancer, 8)
    balancer.finished(EngineRank(2))
    assert chosen(balancer, 1) == [2]


def test_a_report_tells_of_others() -> None:
    balancer = Balancer(RANKS, clients=2)
    balancer.report([[0, 0], [3, 4], [0, 3, 0.5], [0, 1]], 0.0)
    assert chosen(balancer, 2) == [0, 3], "one request more is what chance does"
    balancer.report([[0, 2], [3, 4], [0, 0], [0, 5]], 0.1)
    assert chosen(balancer, 2, 0.1) == [2, 0], "of the two on rank 0 one is ours"


def test_a_late_report_does_not_wipe_what_was_sent_meanwhile() -> None:
    balancer = Balancer(RANKS, clients=2)
    first = chosen(balancer, 4)
    balancer.report([[0, 0]] * 4, 0.1)  # written before these arrived
    assert sorted(first + chosen(balancer, 4, 0.1)) == sorted([*range(4)] * 2)
    assert [balancer.in_flight(rank) for rank in RANKS] == [2, 2, 2, 2]


def test_what_has_ended_since_a_report_is_not_taken_for_others() -> None:
    balancer = Balancer(RANKS, clients=2)
    chosen(balancer, 8)
    for _ in range(2):
        balancer.finished(EngineRank(1))
    balancer.report([[0, 2]] * 4, 0.1)  # written before they had ended
    assert chosen(balancer, 1, 0.1) == [1]


def test_who_is_alone_knows_better_than_reports() -> None:
    balancer = Balancer(RANKS)
    balancer.report([[9, 9], [0, 0], [0, 0], [0, 0]], 0.0)
    assert chosen(balancer, 4) == [0, 1, 2, 3]


def test_old_reports_say_nothing() -> None:
    balancer = Balancer(RANKS, clients=2)
    balancer.report([[9, 9], [0, 0], [0, 0], [0, 0]], 0.0)
    assert 0 not in chosen(balancer, 8, STALE_AFTER - 0.1)
    assert chosen(balancer, 2, STALE_AFTER) == [0, 0]


def test_a_clock_that_is_set_back_makes_no_report_last() -> None:
    balancer = Balancer(RANKS, clients=2)
    balancer.report([[9, 9], [0, 0], [0, 0], [0, 0]], 1000.0)
    assert chosen(balancer, 4, 10.0) == [0, 1, 2, 3]


@pytest.mark.parametrize("counts", [[], [[1]], [[-5, -5]] * 4, [[1, 1]] * 400, [[]] * 4])
def test_reports_that_make_no_sense_do_no_harm(counts: list[list[int | float]]) -> None:
    balancer = Balancer(RANKS, clients=2)
    balancer.report(counts, 0.0)
    assert sorted(chosen(balancer, 4)) == [0, 1, 2, 3]


def test_the_caller_may_say_which() -> None:
    balancer = Balancer(RANKS)
    assert [balancer.choose(0.0, rank=3) for _ in range(3)] == [3, 3, 3]
    assert balancer.in_flight(EngineRank(3)) == 3


@pytest.mark.parametrize("rank", [4, -1, 10**20])
def test_fc41_there_is_no_such_rank(rank: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"data_parallel_rank is .*the ranks are 0 \.\.\. 3") as caught:
        Balancer(RANKS).choose(0.0, rank=rank)
    assert caught.value.status == 400 and caught.value.param == "data_parallel_rank"


def test_a_rank_that_leaves_gets_no_more_and_is_forgotten_when_it_is_empty() -> None:
    balancer = Balancer(RANKS[:2])
    chosen(balancer, 2)
    balancer.leave(RANKS[0])
    assert balancer.ranks == [1] and chosen(balancer, 2) == [1, 1]
    with pytest.raises(InvalidRequestError, match=r"the ranks are \[1\]"):
        balancer.choose(0.0, rank=0)
    balancer.finished(RANKS[0])
    balancer.finished(RANKS[0])  # it has gone
    balancer.join(RANKS[0])
    balancer.join(RANKS[0])
    assert balancer.ranks == [0, 1] and chosen(balancer, 3) == [0, 0, 0]


def test_a_rank_that_leaves_may_come_back_before_it_is_empty() -> None:
    balancer = Balancer(RANKS[:2])
    chosen(balancer, 2)
    balancer.leave(RANKS[0])
    balancer.join(RANKS[0])
    assert balancer.ranks == [0, 1] and balancer.in_flight(RANKS[0]) == 1


def test_a_rank_that_dies_takes_its_requests_along() -> None:
    balancer = Balancer(RANKS[:2])
    chosen(balancer, 4)
    balancer.lost(RANKS[0])
    balancer.finished(RANKS[0])
    assert chosen(balancer, 1) == [1]
    balancer.lost(RANKS[1])
    with pytest.raises(OverloadedError, match="no engine is there"):
        balancer.choose(0.0)
    balancer.join(RANKS[1])
    assert balancer.in_flight(RANKS[1]) == 0


def test_more_ends_than_requests_are_a_bug_of_ours() -> None:
    with pytest.raises(InternalError):
        Balancer(RANKS).finished(RANKS[0])


# --- By prefix ---------------------------------------------------------------------------------------------------


def by_prefix(ranks: list[EngineRank] = RANKS) -> Balancer:
    return Balancer(ranks, prefix=PrefixIndex(block_size=16))


def test_a_prompt_goes_where_its_beginning_was_computed() -> None:
    balancer = by_prefix()
    first = balancer.choose(0.0, prompt_token_ids=PROMPT)
    assert balancer.choose(0.0, prompt_token_ids=[9] * 64) != first
    assert balancer.choose(0.0, prompt_token_ids=[*PROMPT, 1, 2]) == first
    assert balancer.choose(0.0, prompt_token_ids=PROMPT, salt="adapter") != first


def test_of_several_that_know_it_the_one_with_less_to_do() -> None:
    balancer = by_prefix()
    for rank in (1, 2, 2):
        balancer.choose(0.0, rank=rank, prompt_token_ids=PROMPT)
    assert balancer.choose(0.0, prompt_token_ids=PROMPT) == 1


def test_a_rank_that_is_overloaded_is_not_chosen() -> None:
    balancer = by_prefix()
    counts = [0] * 4
    for _ in range(200):
        counts[balancer.choose(0.0, prompt_token_ids=PROMPT)] += 1
    assert max(counts) <= 1.5 * 50


def test_a_rank_that_gets_more_than_its_share_over_time_is_not_chosen() -> None:
    """One request at a time: nothing ever waits."""
    balancer = by_prefix()
    counts = [0] * 4
    for _ in range(400):
        rank = balancer.choose(0.0, prompt_token_ids=PROMPT)
        counts[rank] += 1
        balancer.finished(rank)
    assert max(counts) <= 1.5 * 100


def test_prompts_without_a_full_block_go_by_load() -> None:
    balancer = by_prefix()
    assert [balancer.choose(0.0, prompt_token_ids=[1, 2]) for _ in range(4)] == [0, 1, 2, 3]


def test_a_rank_that_died_has_computed_nothing() -> None:
    balancer = by_prefix(RANKS[:2])
    first = balancer.choose(0.0, prompt_token_ids=PROMPT)
    balancer.lost(first)
    balancer.join(first)
    other = balancer.choose(0.0, prompt_token_ids=[5] * 64)
    assert balancer.choose(0.0, prompt_token_ids=PROMPT) != other


@given(
    ranks=st.integers(1, 8),
    ends=st.lists(st.integers(0, 7), max_size=60),
    reports=st.lists(st.lists(st.integers(0, 9), min_size=8, max_size=8), max_size=60),
)
def test_alone_and_whatever_is_reported_a_burst_is_spread_evenly(
    ranks: int, ends: list[int], reports: list[list[int]]
) -> None:
    balancer = Balancer(RANKS[:0] + [EngineRank(rank) for rank in range(ranks)])
    for end, report in zip(ends, reports, strict=False):
        balancer.choose(0.0)
        balancer.report([[0, count] for count in report], 0.0)
        rank = EngineRank(end % ranks)
        if balancer.in_flight(rank):
            balancer.finished(rank)
    own = [balancer.in_flight(EngineRank(rank)) for rank in range(ranks)]
    for _ in range(sum(max(own) - count for count in own)):
        balancer.choose(0.0)
    assert len({balancer.in_flight(EngineRank(rank)) for rank in range(ranks)}) == 1
