"""The step harness and its clock: nothing happens that was not asked for."""

import pytest

from muro.config import Limits
from muro.engine.interface import StepResult, TakeAborts
from muro.engines.echo import EchoEngine
from muro.testing.clock import ManualClock
from muro.testing.harness import StepHarness, generate_request
from muro.wire.output import FinishReason


def test_the_clock_stands_still_until_it_is_told() -> None:
    clock = ManualClock(5.0)
    assert clock() == clock() == 5.0
    clock.advance(1.5)
    assert clock() == 6.5


def test_a_request_is_greedy_and_only_its_limit_ends_it() -> None:
    sampling = generate_request("a", (1,), max_tokens=9, seed=3).sampling_params
    assert sampling is not None
    assert (sampling.temperature, sampling.ignore_eos, sampling.max_tokens, sampling.seed) == (0.0, True, 9, 3)
    changed = generate_request("a", (1,), temperature=0.5).sampling_params
    assert changed is not None and changed.temperature == 0.5


def test_a_step_at_a_time() -> None:
    harness = StepHarness(EchoEngine())
    harness.submit(generate_request("a", (1, 2), max_tokens=2))
    assert harness.tokens("a") == []
    assert harness.step()
    assert harness.tokens("a") == [1] and harness.finishes("a") == []
    harness.run()
    assert harness.tokens("a") == [1, 2] and harness.finishes("a") == [FinishReason.LENGTH]


def test_clients_are_kept_apart() -> None:
    harness = StepHarness(EchoEngine())
    harness.submit(generate_request("a", (1,), max_tokens=1), client=0)
    harness.submit(generate_request("a", (2,), max_tokens=1), client=1)
    call = harness.call("is_sleeping", client=1)
    harness.run()
    assert (harness.tokens("a", client=0), harness.tokens("a", client=1)) == ([1], [2])
    assert harness.answer(call, client=0) is None and harness.answer(call, client=1) is not None


def test_an_abort_during_a_step_lies_on_both_lanes() -> None:
    harness = StepHarness(EchoEngine())
    harness.submit(generate_request("a"))
    harness.submit(generate_request("b", max_tokens=2))
    harness.abort_during_step("a")
    assert harness.host.num_live == 2
    harness.run()
    assert harness.outputs("a") == [] and harness.finishes("b") == [FinishReason.LENGTH]


def test_rejections_are_messages_too() -> None:
    harness = StepHarness(EchoEngine(), limits=Limits(max_requests=1))
    harness.submit(generate_request("a"))
    harness.submit(generate_request("b"))
    assert harness.finishes("b") == [FinishReason.ERROR]


def test_an_engine_without_end_is_noticed() -> None:
    class Endless(EchoEngine):
        def step(self, take_aborts: TakeAborts) -> StepResult:
            return StepResult([])

    harness = StepHarness(Endless())
    harness.submit(generate_request("a"))
    with pytest.raises(TimeoutError, match="still has work after 7 steps"):
        harness.run(7)
