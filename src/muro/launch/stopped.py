"""Whether a process is stopped, as the operating system tells it."""

from __future__ import annotations


def is_stopped(pid: int) -> bool:
    """Whether the operating system says that a process is stopped by a signal. False if it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False
