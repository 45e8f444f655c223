"""Profiles by name and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from muro.engines.sim.options import SimOptions
from muro.engines.sim.profile import Profile, load_profile, shipped_profiles
from muro.errors import ConfigError


def test_those_that_ship_say_where_they_come_from() -> None:
    assert shipped_profiles()
    for name in shipped_profiles():
        profile = load_profile(name)
        assert "measured" in profile.about and profile.step_us > 0 and profile.prefill_us_per_token > 0


@pytest.mark.parametrize(
    ("name", "content"), [("a.toml", "step_us = 5\njitter = 0.5"), ("a.json", '{"step_us": 5, "jitter": 0.5}')]
)
def test_a_file_and_what_is_given_beside_it(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert load_profile(str(tmp_path / name)) == Profile(step_us=5, jitter=0.5)
    options = SimOptions(profile=str(tmp_path / name), jitter=0.0, max_num_seqs=3)
    assert options.resolved() == Profile(step_us=5, jitter=0, max_num_seqs=3)
    assert options.scheduler(options.resolved()).max_num_seqs == 3


def test_without_a_profile() -> None:
    assert SimOptions().resolved() == Profile()
    assert not Profile().is_instant and Profile(step_us=0, sequence_us=0, prefill_us_per_token=0).is_instant


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("step_us = -1", "step_us is -1"),
        ("jitter = 3", "jitter is 3"),
        ("block_size = 0", "block_size is 0"),
        ("speed = 1", "unknown field `speed`"),
        ("step_us = 'x'", "Expected `float`"),
        ("step_us", "profile .*a.toml"),
    ],
)
def test_what_is_wrong_in_a_file(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(ConfigError, match=words):
        load_profile(str(tmp_path / "a.toml"))


@pytest.mark.parametrize(("name", "words"), [("huge", "neither one that ships"), ("/nowhere/a.toml", "No such file")])
def test_no_such_profile(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_profile(name)
