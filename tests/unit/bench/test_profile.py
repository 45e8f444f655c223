"""profile.py: the lines behind the points, and the file that comes of them."""

from __future__ import annotations

import pytest

from muro.bench.profile import Measured, Plan, fit, run, served_model, toml
from muro.engines.sim.profile import Profile, load_profile
from muro.errors import ConfigError


def test_the_costs_behind_the_points() -> None:
    costs = Profile(
        step_us=20_000, sequence_us=1500, prefill_us_per_token=700, prefill_us_per_request=4000, jitter=0.1, about="x"
    )
    decode = [(n, 20 + 1.5 * n) for n in (1, 2, 4, 8)]
    prefill = [(n, 20 + 1.5 + 4 + 0.7 * n) for n in (20, 70, 300)]
    assert fit(decode, prefill, 0.1, about="x") == costs


def test_nothing_comes_out_negative() -> None:
    falling = fit([(1, 9.0), (2, 7.0)], [(10, 5.0), (20, 4.0)], 9.0)
    assert (falling.step_us, falling.sequence_us, falling.prefill_us_per_token) == (8000, 0, 0)
    assert (falling.prefill_us_per_request, falling.jitter) == (0, 2)
    steep = fit([(10, 10.0), (20, 25.0)], [(10, 10.0), (20, 25.0)], 0)
    assert steep.step_us == 0 and steep.sequence_us == pytest.approx(1200) and steep.prefill_us_per_token > 1000


def test_the_file_is_one_that_the_simulator_reads(tmp_path: object) -> None:
    profile = Profile(about='a "b"\\', step_us=1.5, sequence_us=2, prefill_us_per_token=3, jitter=0.25)
    measured = Measured(profile=profile, between_tokens=[(1, 2.0), (2, 3.0)], first_token=[(9, 4.0)])
    path = f"{tmp_path}/a.toml"
    with open(path, "w") as file:
        file.write(toml(measured))
    assert load_profile(path) == profile


@pytest.mark.parametrize("plan", [Plan(concurrency=1), Plan(prompt_words=20)])
def test_one_point_is_no_line(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="two points"):
        run(plan)


def test_a_server_that_says_nothing() -> None:
    assert served_model("http://127.0.0.1:9") == ""
