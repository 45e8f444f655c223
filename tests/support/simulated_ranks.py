"""Ranks that only count, in virtual time: what a balancer's choices lead to.

A rank does one step in so many ticks of 10 ms; each of its running requests gets a token then. It reports to a
coordinator's board, whose publications reach the front-ends late, or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from muro.ids import EngineRank
from muro.parallel.balance import Balancer
from muro.parallel.load import LoadBoard
from muro.wire.stats import SchedulerStats

TICK = 0.01


class Job(msgspec.Struct, eq=False):
    tokens: int
    front_end: int = 0


class Rank:
    def __init__(self, slots: int, ticks_per_step: int) -> None:
        self.slots, self.ticks_per_step = slots, ticks_per_step
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.served = 0

    @property
    def outstanding(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def work(self) -> int:
        return sum(job.tokens for job in [*self.waiting, *self.running])

    def step(self) -> list[Job]:
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        for job in self.running:
            job.tokens -= 1
        done = [job for job in self.running if not job.tokens]
        self.running = [job for job in self.running if job.tokens]
        return done


class Fleet:
    """Some ranks, a coordinator, and front-ends with a balancer each."""

    def __init__(
        self, ticks_per_step: Sequence[int] = (1, 1, 1, 1), front_ends: int = 1, slots: int = 16, late: float = 0.05
    ) -> None:
        self.ranks = [Rank(slots, ticks) for ticks in ticks_per_step]
        numbers = [EngineRank(rank) for rank in range(len(self.ranks))]
        self.balancers = [Balancer(numbers, clients=front_ends, client_index=i) for i in range(front_ends)]
        self.board = LoadBoard(len(self.ranks))
        self.late = late
        self.reports_until = float("inf")
        self.choose: Callable[[Job], EngineRank] = lambda job: self.balancers[job.front_end].choose(self.now)
        self.tick = 0
        self.news: deque[tuple[float, list[list[int | float]]]] = deque()

    @property
    def now(self) -> float:
        return self.tick * TICK

    @property
    def spread(self) -> int:
        """Requests between the fullest rank and the emptiest."""
        counts = [rank.outstanding for rank in self.ranks]
        return max(counts) - min(counts)

    def send(self, job: Job) -> None:
        rank = self.choose(job)
        self.ranks[rank].waiting.append(job)
        self.ranks[rank].served += 1

    def advance(self) -> None:
        self.tick += 1
        for number, rank in enumerate(self.ranks):
            if self.tick % rank.ticks_per_step == 0:
                for job in rank.step():
                    self.balancers[job.front_end].finished(EngineRank(number))
                self.board.report(number, SchedulerStats(len(rank.running), len(rank.waiting)), self.now)
        if self.now >= self.board.due() and self.now < self.reports_until:
            self.news.append((self.now + self.late, self.board.publish(self.now)))
        while self.news and self.news[0][0] <= self.now:
            counts = self.news.popleft()[1]
            for balancer in self.balancers:
                balancer.report(counts, self.now)

    def serve(self, jobs: Iterable[tuple[float, Job]]) -> float:
        """Send each job at its time and go on until all is done; gives tokens per second."""
        waiting = deque(jobs)
        total = sum(job.tokens for _, job in waiting)
        while waiting or any(rank.outstanding for rank in self.ranks):
            while waiting and waiting[0][0] <= self.now:
                self.send(waiting.popleft()[1])
            self.advance()
        return total / self.now
