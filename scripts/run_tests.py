"""Run the test suite in a few pytest processes at once: most tests wait for processes far more than they compute.

Each lot is an ordinary pytest run over whole files, so nothing is shared between them. What a lot prints is shown
when it ends; what it fails on is therefore never mixed with another one's. The last line sums the lots up as
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
from typing import IO

TESTS = Path(__file__).parent.parent / "tests"
NOTHING_COLLECTED = 5
PROCESS_LOTS = 20
"""Into so many lots go the files of tests that start processes, neighbours into different ones: they are alike."""
UNIT_LOTS = CASE_LOTS = 3
AT_ONCE = 5
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|deselected|warnings?)")
_CLOSING = re.compile(r"^(=+ )?\d+ \w+.* in [\d.]+s", re.MULTILINE)


def lots() -> list[list[Path]]:
    """What one pytest process runs; the longest first, and none so long that the others wait for it in the end."""
    processes = sorted((TESTS / "process").glob("test_*.py"))
    rooms = sorted(path for path in (TESTS / "unit").iterdir() if path.is_dir() or path.name.startswith("test_"))
    rooms = [path for path in rooms if path.name != "__pycache__"]
    cases = sorted((TESTS / "process" / "cases").glob("test_*.py"))
    return [
        *(rooms[first::UNIT_LOTS] for first in range(UNIT_LOTS)),
        *(cases[first::CASE_LOTS] for first in range(CASE_LOTS)),
        *(processes[first::PROCESS_LOTS] for first in range(PROCESS_LOTS)),
        [TESTS / "contract"],
        [TESTS / "api"],
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
    """Run all lots; returns 0 if none failed and some test ran."""
    began = time.monotonic()
    total: Counter[str] = Counter()
    codes: list[int] = []
    waiting = lots()
    running: list[tuple[subprocess.Popen[bytes], IO[str]]] = []
    try:
        while running or waiting:
            while waiting and len(running) < AT_ONCE:
                output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when its lot has ended
                paths = map(str, waiting.pop(0))
                command = [sys.executable, "-m", "pytest", *paths, "-p", "no:cacheprovider", *arguments]
                running.append((subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), output))
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
