"""Scenario files: TOML and JSON, and what is told of a file that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from muro.engines.faults import Fault
from muro.engines.sim.scenario import read_scenario
from muro.engines.sim.schedule import NO_CONDITION, When
from muro.errors import ConfigError

TOML = """
[[fault]]
do = "sleep=0.5"
step = 100
times = 20

[[fault]]
do = "idle:signal=SIGKILL@time=30"

[[fault]]
do = "hang"
"""
JSON = """{"fault": [{"do": "sleep=0.5", "step": 100, "times": 20},
{"do": "idle:signal=SIGKILL", "time": 30}, {"do": "step:hang"}]}"""


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.json", JSON)])
def test_both_forms(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_scenario(str(tmp_path / name)) == [
        (Fault("step", "sleep", "0.5"), When(step=100, times=20)),
        (Fault("idle", "signal", "SIGKILL"), When(time=30)),
        (Fault("step", "hang"), NO_CONDITION),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[fault]]\nstep = 3", "says what to do"),
        ("[[fault]]\ndo = 3", "says what to do"),
        ("[[fault]]\ndo = 'explode'", "the place is one of"),
        ("[[fault]]\ndo = 'hang'\nday = 1", "conditions are"),
        ("[[fault]]\ndo = 'hang@step=1'\ntime = 1", "either behind @ or"),
        ("[[faults]]\ndo = 'hang'", "unknown field `faults`"),
        ("fault = [", "scenario"),
    ],
)
def test_what_is_wrong_is_told_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"bad.toml: .*{words}" if words != "scenario" else "bad.toml"):
        read_scenario(str(tmp_path / "bad.toml"))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/a\.toml: .*No such file"):
        read_scenario("/nowhere/a.toml")


def test_the_example_can_be_read() -> None:
    examples = sorted((Path(__file__).parents[4] / "examples").glob("*.toml"))
    assert examples and all(read_scenario(str(path)) for path in examples)
