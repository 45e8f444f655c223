"""The simulator sleeps as a model does: requests go on with their own tokens, and nothing of before is found."""

from typing import Any

import pytest

from muro.engine.loader import load_engine
from muro.testing.harness import StepHarness, generate_request
from muro.wire.output import FinishReason


def quiet(phase: str, percent: float) -> None:
    """Nobody watches."""


def harness_over(**options: Any) -> StepHarness:
    return StepHarness(load_engine("sim", model=None, options={"load_s": 0, **options}, report=quiet))


@pytest.mark.parametrize("options", [{}, {"tokens": "sampled"}, {"async_scheduling": True, "step_us": 100}])
def test_frozen_requests_go_on_with_their_own_tokens(options: dict[str, Any]) -> None:
    told = []
    for sleeps in (False, True):
        harness = harness_over(**options)
        for number in range(3):
            harness.submit(generate_request(f"r{number}", [*range(65, 100 + number)], max_tokens=20, seed=number))
        for level in (1, 2, 1):
            harness.step()
            if sleeps:
                for call in (harness.call("sleep", level, "keep"), harness.call("wake_up")):
                    answer = harness.answer(call)
                    assert answer is not None and answer.failure_message is None
        harness.run()
        assert all(harness.finishes(f"r{number}") == [FinishReason.LENGTH] for number in range(3))
        told.append([harness.tokens(f"r{number}") for number in range(3)])
    assert told[0] == told[1]
