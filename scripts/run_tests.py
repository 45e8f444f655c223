"""Run the test suite in a few pytest processes at once: most tests wait for processes far more than they compute.

Each group is an ordinary pytest run over whole files, so nothing is shared between them. What a group prints is shown
when it ends; what it fails on is therefore never mixed with another one's. The last line sums the groups up as
pytest's own last line does.

    python scripts/run_tests.py [ARGUMENTS OF PYTEST ...]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
NOTHING_COLLECTED = 5
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|deselected|warnings?)")
_CLOSING = re.compile(r"^(=+ )?\d+ \w+.* in [\d.]+s", re.MULTILINE)


def groups() -> list[list[Path]]:
    """What runs at the same time; about as long each."""
    processes = sorted((TESTS / "process").glob("test_*.py"))
    early = [path for path in processes if path.name < "test_r"]
    wire = [path for path in processes if path.name.startswith("test_wire")]
    late = [path for path in processes if path not in (*early, *wire)]
    return [
        [TESTS / "process" / "cases", TESTS / "contract"],
        [TESTS / "api", *early],
        late,
        wire,  # waits for silent peers most of the time
        [TESTS / "unit"],
    ]


def summary(text: str) -> Counter[str]:
    """The counts in the closing line of a pytest run."""
    closing = [match.group() for match in _CLOSING.finditer(text)]
    counts: Counter[str] = Counter()
    for number, word in _COUNT.findall(closing[-1]) if closing else []:
        counts[word.removesuffix("s") if word in ("errors", "warnings") else word] += int(number)
    return counts


def closing_line(counts: Counter[str], seconds: float) -> str:
    """As pytest would have said it of one run."""
    words = ", ".join(f"{number} {word}" for word, number in sorted(counts.items(), key=lambda item: item[0]))
    return f"{'=' * 10} {words or 'no tests ran'} in {seconds:.2f}s {'=' * 10}"


def run(arguments: Sequence[str]) -> int:
    """Run all groups; returns 0 if none failed and some test ran."""
    began = time.monotonic()
    total: Counter[str] = Counter()
    codes: list[int] = []
    running = []
    for paths in groups():
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when its group has ended
        command = [sys.executable, "-m", "pytest", *map(str, paths), "-p", "no:cacheprovider", *arguments]
        running.append((subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), output))
    try:
        while running:
            for one in list(running):
                process, output = one
                if process.poll() is None:
                    continue
                running.remove(one)
                output.seek(0)
                text = output.read()
                output.close()
                print(text, flush=True)
                total += summary(text)
                codes.append(process.returncode)
            time.sleep(0.2)
    finally:
        for process, _ in running:
            process.terminate()
    failed = [code for code in codes if code not in (0, NOTHING_COLLECTED)]
    print(closing_line(total, time.monotonic() - began), flush=True)
    return failed[0] if failed else (0 if 0 in codes else NOTHING_COLLECTED)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
