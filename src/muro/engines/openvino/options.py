"""What can be set about the OpenVINO engine, and how many CPUs it may use."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal

import msgspec

from muro.errors import ConfigError


class OpenVINOOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the model on the CPU."""

    weights: Literal["int8", "f16"] = "int8"
    """"int8": per output channel, half the memory traffic of f16 and so nearly twice its speed for few sequences."""
    cache: Literal["f16", "u8"] = "f16"
    """Number format of keys and values in the cache."""
    cache_memory_mb: int = 256
    """Memory for keys and values, in MiB."""
    max_model_len: int | None = None
    """The most tokens of one sequence; None: what the model was trained for, as far as the cache can hold it."""
    threads: int | None = None
    """Threads that compute; None: one per CPU that this process may use."""
    max_num_seqs: int = 64
    """Sequences that run at once; on a few CPUs more of them bring no more tokens per second."""
    max_num_batched_tokens: int = 256
    """Tokens per step. A long prompt holds up those who stream for the time of so many tokens at once."""

    def __post_init__(self) -> None:
        for name in ("cache_memory_mb", "max_model_len", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be positive")


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process may use: its affinity mask, cut down to the quota of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(cgroup)
    # A part of a CPU counts as one more thread: better throttled now and then than idle.
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _cgroup_quota(cgroup: Path) -> float | None:
    """CPUs granted by the control group, version 2 or 1; None if it sets no limit."""
    try:
        if (version_2 := cgroup / "cpu.max").exists():
            quota, period = version_2.read_text().split()
        else:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        granted = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # no control group, or "max"
        return None
    return granted if granted > 0 else None
