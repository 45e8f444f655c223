"""`python -m fuzz`: every target and every walk, one after the other, within a fixed time.

Each runs in a process of its own, with the same seed, and has its equal part of the time. Exit code 0: all promises
were kept; 1: some were not, and what broke them is printed.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time
from pathlib import Path

from fuzz.decoders import have_atheris
from fuzz.targets import TARGETS, unpack_frames
from fuzz.walks import MACHINES

DIRECTORY = Path(".fuzz")
GRACE = 120.0
"""Seconds that a process gets over its time: to begin, to finish its last batch, to shrink what it found."""


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit code."""
    names = [*TARGETS, *MACHINES]
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="for all together (120)")
    parser.add_argument("--seed", type=int, default=None, help="that of an earlier run")
    parser.add_argument("--only", action="append", choices=names, help="one of them; may be repeated")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run one input that was kept, and nothing else")
    asked = parser.parse_args(arguments)
    if asked.repeat is not None:
        TARGETS[asked.repeat.parent.name].run(unpack_frames(asked.repeat.read_bytes()))
        print(f"{asked.repeat} keeps the promises")
        return 0
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    chosen = asked.only or names
    how = "inputs are guided by coverage (atheris)"
    if not have_atheris():
        how = "atheris is not installed: bytes are mutated at random, without looking at coverage"
    print(f"seed {seed}: {len(chosen)} processes, {asked.seconds} s in all; {how}", flush=True)
    failed = [name for name in chosen if not _run(name, max(1, asked.seconds // len(chosen)), seed)]
    if failed:
        print(f"{', '.join(failed)} failed; the same again: python -m fuzz --seed {seed} --only {failed[0]}")
    return 1 if failed else 0


def _run(name: str, seconds: int, seed: int) -> bool:
    """Run one of them and print a line, or on failure all that it said."""
    kept = DIRECTORY / name
    kept.mkdir(parents=True, exist_ok=True)
    before = set(kept.glob("*"))
    module = ["fuzz.decoders", name] if name in TARGETS else ["fuzz.walks", name]
    place = [str(kept)] if name in TARGETS else []
    command = [sys.executable, "-m", *module, str(seconds), str(seed), *place]
    began = time.monotonic()
    with (kept.parent / f"{name}.log").open("w+b") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=log, timeout=seconds + GRACE, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
        log.seek(0)
        said = log.read().decode(errors="replace").splitlines()
    runs = next((line.split()[1] for line in reversed(said) if line.startswith("Done ")), "?")
    what = "inputs" if name in TARGETS else "walks"
    print(
        f"{'ok' if code == 0 else 'FAIL':4}  {name:10}  {runs:>9} {what:6}  {time.monotonic() - began:6.1f} s",
        flush=True,
    )
    if code:
        print("\n".join(["", *said[-80:], ""]))
        for path in sorted(set(kept.glob("*")) - before - {kept / "corpus"}):
            print(f"kept: python -m fuzz --repeat {path}")
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
