"""The scheduler under random schedules: nothing leaks, limits hold, everybody ends once, nobody starves.

`tests/support/scheduling.py` says what is checked, at every step. Seeded schedules for breadth, the same with
hypothesis for small counterexamples.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.options import SchedulerConfig
from tests.support.counts import count
from tests.support.scheduling import Arrival, Run, Schedule

PARTS = 40
SCHEDULES = count(4_000, 20_000)


def random_schedule(rng: random.Random) -> Schedule:
    """A few short requests in a cache that is too small for all of them."""
    block_size = rng.randint(1, 4)
    num_blocks = rng.randint(2, 9)
    capacity = num_blocks * block_size
    seqs = rng.randint(1, 5)
    shared = [rng.randint(1, 3) for _ in range(capacity)]
    arrivals = []
    for _ in range(rng.randint(1, 7)):
        own = rng.randint(1, min(capacity, 12))
        same = rng.choice([0, own // 2, own])
        prompt = shared[:same] + [rng.randint(1, 3) for _ in range(own - same)]
        arrivals.append(
            Arrival(
                when=rng.choice([0, 0, rng.randint(0, 8)]),
                prompt=prompt,
                output=min(rng.randint(1, 9), capacity + 1 - own),
                priority=rng.choice([0, 0, -3, 5]),
                aborted=rng.choice([None, None, None, rng.randint(0, 15)]),
                blocked=rng.choice([0, 0, 0, rng.randint(0, 15)]),
                salt=rng.choice([None, None, "a"]),
            )
        )
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + rng.choice([0, 1, 3, 30]),
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        enable_prefix_caching=rng.random() < 0.8,
        async_scheduling=rng.random() < 0.5,
    )
    failing = frozenset(rng.sample(range(20), rng.choice([0, 0, 2])))
    resets = frozenset(rng.sample(range(20), rng.choice([0, 0, 1])))
    return Schedule(arrivals, num_blocks, block_size, config, failing, resets, rng.choice([1, 1, 2, 8]))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules(part: int) -> None:
    for number in range(SCHEDULES // PARTS):
        schedule = random_schedule(random.Random(f"{part}/{number}"))
        try:
            Run(schedule).finish()
        except Exception as error:
            error.add_note(f"schedule {part}/{number}: {schedule}")
            raise


def test_random_schedules_reach_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for number in range(1000):
        run = Run(random_schedule(random.Random(f"0/{number}")))
        run.finish()
        seen += run.seen
    assert {
        "chunk", "finished: abort while its step ran", "hit", "hit after preemption", "nobody can run",
        "preempted", "preempted as often as may be", "preempted while its step ran", "unknown token",
    } <= set(seen), seen  # fmt: skip


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """What `random_schedule` makes, in a form that shrinks."""
    block_size, num_blocks, seqs = draw(st.integers(1, 4)), draw(st.integers(2, 9)), draw(st.integers(1, 5))
    capacity = block_size * num_blocks
    arrivals = draw(
        st.lists(
            st.builds(
                Arrival,
                when=st.integers(0, 8),
                prompt=st.lists(st.integers(1, 2), min_size=1, max_size=min(capacity, 12)),
                output=st.integers(1, 9),
                priority=st.integers(-1, 1),
                aborted=st.none() | st.integers(0, 15),
                blocked=st.integers(0, 15),
                salt=st.none() | st.just("a"),
            ),
            min_size=1,
            max_size=7,
        )
    )
    fitting = [
        Arrival(a.when, a.prompt, min(a.output, capacity + 1 - len(a.prompt)), a.priority, a.aborted, a.blocked, a.salt)
        for a in arrivals
    ]
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + draw(st.integers(0, 10)),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
    )
    steps = st.frozensets(st.integers(0, 19), max_size=2)
    return Schedule(fitting, num_blocks, block_size, config, draw(steps), draw(steps), draw(st.integers(1, 8)))


@given(schedules())
@settings(max_examples=count(100, 500), deadline=None)
def test_random_schedules_that_shrink(schedule: Schedule) -> None:
    Run(schedule).finish()
