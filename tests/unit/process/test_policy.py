"""A rank on its own has nothing to do after a step."""

import pytest

from muro.process.policy import Independent, TickPolicy


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize("has_work", [True, False])
def test_independent(executed: bool, has_work: bool) -> None:
    policy: TickPolicy = Independent()
    assert policy.after_step(executed, has_work) == []
