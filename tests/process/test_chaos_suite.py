"""The suite of random faults itself: a short run is clean, and a server that says something else is found out."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main
from tests.chaos.run import Plan, run
from tests.chaos.world import World

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("policy", [pytest.param("fail", marks=pytest.mark.slow), "replay"])
def test_a_short_run(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [word for name in ("kill", "exit", "refuse", "stop and continue") for word in ("--only", name)]
    code = main(["--seconds", "4", "--rate", "15", "--seed", "1", "--policy", policy, *faults])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "seed 1: 4 s at 15 requests/s" in said


def test_wrong_words_are_found() -> None:
    import asyncio

    with World("--engine", "sim", "--engine-option", "seed=1") as world:
        result = asyncio.run(run(world, Plan(1.0, 20.0, 3, False, ("stop and continue",))))
    assert result.outcomes["wrong"] > 3
    assert any("is wrong from letter" in violation for violation in result.violations)
