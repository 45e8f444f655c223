"""Ranks on a Ray cluster of two nodes, if Ray is installed here: it is an extra. Each story is a program of its own."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import ROOT, environment

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: make ray"),
    pytest.mark.timeout(300),
]


def facts_of(story: str) -> dict[str, Any]:
    """Run a story; its facts are the last line that it prints. Nothing may be left in shared memory."""
    before = set(Path("/dev/shm").iterdir())
    done = subprocess.run(
        [sys.executable, "-m", f"tests.cluster.{story}"],
        cwd=ROOT,
        env=environment(RAY_USAGE_STATS_ENABLED="0"),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    shutil.rmtree(Path(tempfile.gettempdir(), "ray"), ignore_errors=True)  # its logs
    assert done.returncode == 0, done.stderr[-6000:]
    left = [path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith(("plasma", "ray"))]
    assert not left
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(facts, indent=1))
    return facts


def test_a_node_dies_and_its_rank_is_placed_again() -> None:
    facts = facts_of("node_death")
    assert facts["same"] and facts["again"] and facts["replayed"] >= 1
    assert facts["generations"] == [0, 1]
    assert "is lost: its " in facts["error"]
    assert not facts["old_alive"] and not facts["left"]
    assert facts["noticed"] < 20  # Ray itself misses a node after up to 15 s


def test_deaths_hangs_and_logs() -> None:
    facts = facts_of("deaths")
    assert "killed by SIGKILL" in facts["killed"]["told"]
    assert "it was stuck: step" in facts["hung"]["told"]
    assert "is lost: its actor or the node of that has died" in facts["host"]["told"]
    for generation, name in enumerate(("killed", "hung", "host"), 1):
        assert facts[name]["after"] == [7, 8, 9] and facts[name]["generation"] == generation
    assert not facts["left"]
    log = "\n".join(facts["log"])
    assert "WARNING engine 0 (tests.cluster.engines:chatty) tests.chatty: loaded with MURO_CPUS=1" in log
    assert "its threads stood here" in log and "faults.py" in log
    assert (
        "StartupError" in facts["too much"] and "waiting for a place with GPU 8 (the cluster has " in facts["too much"]
    )


def test_engines_end_with_their_front_end_and_a_front_end_does_not_end_with_the_cluster() -> None:
    """Ray ends a process whose cluster has been gone for 60 s, unless it is told otherwise."""
    facts = facts_of("ends")
    assert facts["engines ended"] < 10
    assert facts["meanwhile"] == [7, 8, 9], "engines need no cluster to go on"
    assert all("is lost: " in error for error in facts["errors"])
    assert (facts["closed"], facts["code"], facts["left"]) == ("closed", 0, [])
    assert facts["closing took"] < 25
