"""`muro bench profile` against a simulator whose costs are known. Bounds are wide: tests share their machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from muro.engines.sim.profile import load_profile
from tests.support.server import Server

COSTS = {"step_us": 40_000, "sequence_us": 4000, "prefill_us_per_token": 1000}


def test_what_it_finds_is_what_was_set_and_can_be_served_again(tmp_path: Path) -> None:
    flags = [f"--engine-option={name}={value}" for name, value in COSTS.items()]
    plan = ["--concurrency", "4", "--prompt-words", "64", "--tokens", "8", "--repeats", "1"]
    with Server("--engine", "sim", *flags) as server:
        server.ready()
        command = [sys.executable, "-m", "muro", "bench", "profile", server.url, *plan]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    path = tmp_path / "found.toml"
    path.write_text(found)
    profile = load_profile(str(path))
    assert profile.about.startswith("measured by muro bench profile: ")
    assert 20_000 < profile.step_us < 80_000
    assert 500 < profile.prefill_us_per_token < 2000  # a byte is a token there
    with Server("--engine", "sim", f"--engine-option=profile={path}") as server:
        server.ready()
