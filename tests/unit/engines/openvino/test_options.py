import os
from pathlib import Path

import pytest

from muro.engines.openvino.options import OpenVINOOptions, available_cpus
from muro.errors import ConfigError

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", ["cache_memory_mb", "max_model_len", "threads"])
def test_values_that_make_no_sense(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        OpenVINOOptions(**{name: 0})


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("50000 100000", 1), ("max 100000", ALLOWED), ("99900000 100000", ALLOWED), ("nonsense", ALLOWED)],
)
def test_quota_of_a_control_group(tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert available_cpus(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("100000", 1), ("-1", ALLOWED)])
def test_quota_of_an_old_control_group(tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota + "\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cpus(tmp_path) == cpus


def test_no_control_group_and_an_affinity_mask(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == ALLOWED
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert available_cpus(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, mask)
