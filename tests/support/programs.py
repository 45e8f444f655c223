"""Whole programs, run as their users would: in an interpreter of their own."""

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.deadline import until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    seconds: float


def start(source: str, **env: str) -> "subprocess.Popen[str]":
    """A program that is left running; its standard streams are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", source],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    )


def run(arguments: list[str], text: str | None = None, *, cwd: Path = ROOT, **env: str) -> Done:
    """A program that comes to its end by itself."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        input=text,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def environment(**more: str) -> dict[str, str]:
    """Ours; programs find the tests' own modules, and the muro that is tested here."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def line(program: "subprocess.Popen[str]") -> str:
    """The next line that a program prints; fails the test if it ends instead."""
    assert program.stdout is not None and program.stderr is not None
    text = program.stdout.readline().strip()
    assert text, program.stderr.read()
    return text


def go(program: "subprocess.Popen[str]") -> None:
    """Give it a line to read."""
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()


def end(program: "subprocess.Popen[str]", *, kill: bool = True) -> Done:
    """Kill it, or wait for its end; gives what it wrote."""
    if kill:
        program.kill()
    began = time.monotonic()
    out, err = program.communicate(timeout=20)
    return Done(program.returncode, out, err, time.monotonic() - began)


def children(pid: int) -> list[int]:
    """Direct children of any thread of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int, *, at_least: int = 0) -> list[int]:
    """All that a process has started, and what those have started; waits until there are enough."""

    def look() -> list[int]:
        found = children(pid)
        for child in list(found):
            found += _descendants_if_there(child)
        return found

    return until(lambda: found if len(found := look()) >= at_least else [], what="descendants") if at_least else look()


def _descendants_if_there(pid: int) -> list[int]:
    try:
        return descendants(pid)
    except FileNotFoundError:
        return []
