"""FC-38 and FC-39 in virtual time: bursts, reports that come late or not at all, a slow rank, shared prefixes."""

import random

import pytest

from muro.ids import EngineRank
from muro.parallel.balance import Balancer
from muro.parallel.prefix import PrefixIndex
from tests.support.counts import count
from tests.support.simulated_ranks import TICK, Fleet, Job

pytestmark = pytest.mark.cases


def mixed(seed: int, requests: int = 400, front_ends: int = 1) -> list[Job]:
    """Requests of very mixed length: 1 ... 1000 tokens, as many short ones as long ones."""
    rng = random.Random(seed)
    return [Job(int(10 ** rng.uniform(0, 3)), rng.randrange(front_ends)) for _ in range(requests)]


def steadily(jobs: list[Job], seconds: float) -> list[tuple[float, Job]]:
    return [(at * seconds / len(jobs), job) for at, job in enumerate(jobs)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_in_a_burst_of_mixed_requests_ranks_differ_by_two_at_most(ranks: int) -> None:
    for seed in range(20):
        fleet = Fleet([1] * ranks, late=0.02 * (seed % 5))
        rng = random.Random(seed)
        jobs = mixed(seed)
        while jobs:
            for job in jobs[:100]:  # the burst is over before anything ends
                before = fleet.spread
                fleet.send(job)
                assert fleet.spread <= max(2, before), "what was uneven becomes even"
            assert fleet.spread <= 2, f"seed {seed}"
            del jobs[:100]
            for _ in range(rng.randrange(60)):
                fleet.advance()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("front_ends", [1, 2])
def test_fc39_bursts_of_equal_requests_around_a_snapshot(ranks: int, front_ends: int) -> None:
    for seed in range(count(40, 400)):
        rng = random.Random(seed)
        fleet = Fleet([1] * ranks, front_ends, late=0.02 * rng.randrange(5))
        for _ in range(6):
            for _ in range(rng.randrange(5, 60)):
                fleet.send(Job(30, rng.randrange(front_ends)))
                assert fleet.spread <= 2, f"seed {seed}"
                if not rng.randrange(8):
                    fleet.advance()
            while any(rank.outstanding for rank in fleet.ranks):
                fleet.advance()


def test_fc39_a_snapshot_of_before_the_burst_changes_nothing() -> None:
    """It arrives at each point of the burst."""
    for at in range(40):
        fleet = Fleet(front_ends=2)
        old: list[list[int | float]] = [[0, 0]] * 4
        for number in range(40):
            if number == at:
                for balancer in fleet.balancers:
                    balancer.report(old, fleet.now)
            fleet.send(Job(30, number % 2))
            assert fleet.spread <= 2


def best(jobs: list[Job], seconds: float, ticks_per_step: tuple[int, ...] = (1, 1, 1, 1)) -> float:
    """Throughput of one who knows how long every request will take: the rank that will be done first gets it."""
    fleet = Fleet(ticks_per_step)
    numbers = range(len(fleet.ranks))
    fleet.choose = lambda job: EngineRank(min(numbers, key=lambda n: fleet.ranks[n].work * ticks_per_step[n]))
    for balancer in fleet.balancers:
        balancer.finished = lambda rank: None  # type: ignore[method-assign] # it has chosen nothing
    return fleet.serve(steadily([Job(job.tokens) for job in jobs], seconds))


@pytest.mark.parametrize("front_ends", [1, 4])
@pytest.mark.parametrize("cut_off_at", [0.0, 2.0, float("inf")], ids=["no report", "cut off", "reports"])
def test_fc38_without_reports_nearly_the_best_throughput(front_ends: int, cut_off_at: float) -> None:
    ratios = []
    for seed in range(10):
        jobs = mixed(seed, 400, front_ends)
        seconds = 1.05 * sum(job.tokens for job in jobs) * TICK / (4 * 16)  # nearly all that they can do
        ideal = best(jobs, seconds)
        fleet = Fleet(front_ends=front_ends)
        fleet.reports_until = cut_off_at
        ratios.append(fleet.serve(steadily(jobs, seconds)) / ideal)
    assert sum(ratios) / len(ratios) > 0.9, ratios


def test_without_reports_never_worse_than_taking_turns() -> None:
    ratios = []
    for seed in range(20):
        jobs = mixed(seed)
        seconds = sum(job.tokens for job in jobs) * TICK / (4 * 16)
        turns = Fleet()
        turns.choose = lambda job, turns=turns: turns.balancers[0].choose(
            0.0, rank=sum(rank.served for rank in turns.ranks) % 4
        )
        taking_turns = turns.serve(steadily([Job(job.tokens) for job in jobs], seconds))
        fleet = Fleet()
        fleet.reports_until = 0.0
        ratios.append(fleet.serve(steadily(jobs, seconds)) / taking_turns)
    assert sum(ratios) / len(ratios) >= 1.0 and min(ratios) > 0.95, ratios


@pytest.mark.parametrize("reports_until", [0.0, float("inf")], ids=["no report", "reports"])
@pytest.mark.parametrize("front_ends", [1, 2])
def test_a_slow_rank_gets_fewer(front_ends: int, reports_until: float) -> None:
    fleet = Fleet((1, 1, 3, 1), front_ends)
    fleet.reports_until = reports_until
    jobs = mixed(1, 800, front_ends)
    fleet.serve(steadily(jobs, sum(job.tokens for job in jobs) * TICK / (4 * 16) * 1.3))
    slow, *others = fleet.ranks[2].served, *(fleet.ranks[n].served for n in (0, 1, 3))
    assert slow < 0.7 * min(others), (slow, others)


# --- Prefixes ----------------------------------------------------------------------------------------------------


class Cache:
    """The prefix cache of one rank: so many blocks, the last ones used."""

    def __init__(self, blocks: int) -> None:
        self.index = PrefixIndex(16, blocks)

    def compute(self, prompt: list[int]) -> int:
        """Gives the tokens that need not be computed."""
        chain = self.index.chain(prompt)
        hit = self.index.depth(EngineRank(0), chain)
        self.index.computes(EngineRank(0), chain)
        return 16 * hit


def conversations(seed: int) -> list[list[int]]:
    """50 conversations about a long text each, of 6 turns, interleaved; a cache holds a quarter of them, not more."""
    rng = random.Random(seed)
    systems = [[rng.randrange(1000) for _ in range(64)] for _ in range(5)]
    talks = [systems[n % 5] + [rng.randrange(1000) for _ in range(768)] for n in range(50)]
    trace = []
    for _ in range(6):
        for talk in rng.sample(talks, len(talks)):
            talk += [rng.randrange(1000) for _ in range(60)]
            trace.append(list(talk))
    return trace


def replay(trace: list[list[int]], prefix: PrefixIndex | None, in_flight: int) -> tuple[float, list[int]]:
    """Hit rate in tokens, and requests per rank; `in_flight` requests at a time."""
    balancer = Balancer([EngineRank(rank) for rank in range(4)], prefix=prefix)
    caches = [Cache(1000) for _ in range(4)]
    counts, hits, running = [0] * 4, 0, []
    for prompt in trace:
        rank = balancer.choose(0.0, prompt_token_ids=prompt)
        counts[rank] += 1
        hits += caches[rank].compute(prompt)
        running.append(rank)
        if len(running) > in_flight:
            balancer.finished(running.pop(0))
    return hits / sum(map(len, trace)), counts


@pytest.mark.parametrize("in_flight", [0, 8, 32])
def test_conversations_go_where_they_were(in_flight: int) -> None:
    for seed in range(5):
        trace = conversations(seed)
        by_load, _ = replay(trace, None, in_flight)
        by_prefix, counts = replay(trace, PrefixIndex(16, 1000), in_flight)
        assert by_prefix >= 2 * by_load, (by_prefix, by_load)
        assert max(counts) <= 1.5 * sum(counts) / 4, counts
