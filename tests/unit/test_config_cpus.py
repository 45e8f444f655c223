"""FC-48: how many CPUs an engine may use, and how its libraries hear of it."""

import os
from pathlib import Path

import pytest

from muro.config import available_cpus, engine_cpus, engine_environment
from muro.errors import ConfigError

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("50000 100000", 1), ("max 100000", ALLOWED), ("99900000 100000", ALLOWED), ("nonsense", ALLOWED)],
)
def test_quota_of_a_control_group(tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert available_cpus(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("100000", 1), ("-1", ALLOWED)])
def test_quota_of_an_old_control_group(tmp_path: Path, quota: str, cpus: int) -> None:
    old_group(tmp_path / "cpu", quota)
    assert available_cpus(tmp_path) == cpus


def old_group(directory: Path, quota: str) -> None:
    directory.mkdir(parents=True)
    (directory / "cpu.cfs_quota_us").write_text(quota + "\n")
    (directory / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize("rows", ["0::/service/engine\n", "3:cpu,cpuacct:/service/engine\n1:name=systemd:/other\n"])
@pytest.mark.parametrize("limited", ["service", "service/engine"])
def test_the_group_that_this_process_is_in_and_its_parents(tmp_path: Path, rows: str, limited: str) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text(rows)
    if rows.startswith("0"):
        (tmp_path / "service" / "engine").mkdir(parents=True)
        (tmp_path / limited / "cpu.max").write_text("70000 100000\n")
    else:
        old_group(tmp_path / "cpu" / limited, "70000")
    assert available_cpus(tmp_path, membership) == 1
    membership.write_text("0::/elsewhere\n")
    assert available_cpus(tmp_path, membership) == ALLOWED


def test_no_control_group_and_an_affinity_mask(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == ALLOWED
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert available_cpus(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, mask)


@pytest.mark.parametrize("engines", [1, 2, 1000])
def test_engines_share_what_there_is(engines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MURO_CPUS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    share = str(max(1, available_cpus() // engines))
    assert engine_environment({"A": "b"}, engines) == {
        "MURO_CPUS": share,
        "OMP_NUM_THREADS": share,
        "RAYON_NUM_THREADS": share,
        "A": "b",
    }


def test_an_explicit_setting_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    added = engine_environment({"MURO_CPUS": "3"}, 4)
    assert added["MURO_CPUS"] == "3"
    assert "OMP_NUM_THREADS" not in added


def test_an_engine_asks_for_its_share() -> None:
    assert engine_cpus({"MURO_CPUS": "3"}) == 3
    assert engine_cpus({}) == available_cpus()
    for wrong in ("0", "-1", "two", ""):
        with pytest.raises(ConfigError, match="MURO_CPUS"):
            engine_cpus({"MURO_CPUS": wrong})
