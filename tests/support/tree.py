"""The processes of an engine's tree, found by the mark that they carry."""

import os
from pathlib import Path

from muro.child.warden import TREE


def token_of(pid: int) -> str:
    """The token of the tree that a process belongs to."""
    for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, value = word.decode(errors="replace").partition("=")
        if name == TREE:
            return value
    raise AssertionError(f"process {pid} has no {TREE}")


def marked(token: str) -> list[int]:
    """All living processes that carry a token, the warden included."""
    mark = f"{TREE}={token}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and state(int(name)) not in "ZX":
                    found.append(int(name))
            except OSError:  # it has gone, or is another user's
                continue
    return found


def wardens(token: str) -> list[int]:
    """The warden of a tree, if it lives."""
    return [pid for pid in marked(token) if name_of(pid) == "muro-warden"]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def state(pid: int) -> str:
    """One letter, as `ps` shows it; X for a process that is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def zombies(parent: int) -> list[int]:
    """Children of a process that have ended and were not reaped."""
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        found += [pid for pid in map(int, (task / "children").read_text().split()) if state(pid) == "Z"]
    return found
