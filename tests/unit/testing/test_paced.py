"""The paced engine: an echo whose steps take their time."""

import time

import pytest

from muro.testing.harness import StepHarness, generate_request
from muro.testing.paced import PacedEngine, PacedOptions


@pytest.mark.parametrize("burn", [False, True])
def test_steps_take_their_time_however_many_requests_are_in_them(burn: bool) -> None:
    harness = StepHarness(PacedEngine(PacedOptions(step_ms=5.0, burn=burn)))
    for index in range(20):
        harness.submit(generate_request(f"r{index}", (index,), max_tokens=10))
    started, burnt = time.monotonic(), time.thread_time()
    harness.run()
    took, burnt = time.monotonic() - started, time.thread_time() - burnt
    assert took >= 0.045, "ten steps, of which the first may be half a step long"
    assert harness.tokens("r7") == [7] * 10
    assert (burnt > 0.005) if burn else (burnt < took / 2)


def test_a_step_does_not_end_before_its_time_whatever_was_done_between_two() -> None:
    harness = StepHarness(PacedEngine(PacedOptions(step_ms=40.0)))
    harness.submit(generate_request("a", max_tokens=2))
    harness.step()
    started = time.monotonic()
    until = started + 0.02
    while time.monotonic() < until:
        pass
    harness.step()
    assert time.monotonic() - started >= 0.04 * 0.99
