from __future__ import annotations

import gc

from muro.bench.scheduler import RUNNING, run, text


def test_every_figure_is_there_and_positive() -> None:
    heard: list[str] = []
    before = gc.get_threshold()
    result = run(steps=60, rounds=1, progress=heard.append)
    assert list(result) == [str(running) for running in RUNNING]
    assert all(set(one) == {"decode_us", "life_us", "tokens_per_s"} for one in result.values())
    # Of a single request, looking at the clock costs as much as the step, and is not counted: nothing may be left.
    assert min(one["tokens_per_s"] for one in result.values()) > 0
    assert min(result[str(running)]["decode_us"] for running in RUNNING[1:]) > 0
    assert heard[-1] == f"{RUNNING[-1]} running, round 1 of 1"
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
    assert text(result).count("\n") == len(RUNNING)
