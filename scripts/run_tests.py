"""Run the test suite in a few pytest processes at once: most tests wait for processes far more than they compute.

Each lot is an ordinary pytest run over whole files, so nothing is shared between them. What a lot prints is shown
when it ends; what it fails on is therefore never mixed with another one's. The last line sums the lots up as
pytest's own last line does.

A few tests that fail beside others are run once more, alone: a shared machine may have been too slow for five lots.
What fails again fails the run; what does not is named and counted as unsteady, so that somebody looks at it.

    python scripts/run_tests.py [ARGUMENTS OF PYTEST ...]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

TESTS = Path(__file__).parent.parent / "tests"
NOTHING_COLLECTED = 5
PROCESS_LOTS = 20
"""Into so many lots go the files of tests that start processes, neighbours into different ones: they are alike."""
UNIT_LOTS = CASE_LOTS = 3
AT_ONCE = 5
FEW = 5
"""Failures that one may blame on the machine."""
FAILED = 1
"""Pytest's exit code where tests failed, and nothing worse happened."""
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|deselected|warnings?)")
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+?::[^\[\s]+(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
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


def pytest(arguments: Sequence[str], output: IO[str]) -> subprocess.Popen[bytes]:
    """One pytest process."""
    command = [sys.executable, "-m", "pytest", *arguments, "-p", "no:cacheprovider"]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def run_lots(arguments: Sequence[str]) -> Iterator[tuple[str, int]]:
    """What each lot printed, and its exit code, as they end."""
    waiting = lots()
    running: list[tuple[subprocess.Popen[bytes], IO[str]]] = []
    try:
        while running or waiting:
            while waiting and len(running) < AT_ONCE:
                output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when its lot has ended
                running.append((pytest([*map(str, waiting.pop(0)), *arguments], output), output))
            for ended in [one for one in running if one[0].poll() is not None]:
                running.remove(ended)
                ended[1].seek(0)
                yield ended[1].read(), ended[0].returncode
                ended[1].close()
            time.sleep(0.2)
    finally:
        for process, _ in running:
            process.terminate()


def failures(text: str) -> list[str]:
    """The tests that a pytest run names as failed, each once."""
    return list(dict.fromkeys(_FAILURE.findall(text)))


def again(failed: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Run tests once more, alone; returns those that fail again."""
    print(f"Once more, alone: {', '.join(failed)}\n", flush=True)
    with tempfile.TemporaryFile("w+") as output:
        code = pytest([*failed, *arguments], output).wait()
        output.seek(0)
        text = output.read()
    print(text, flush=True)
    return [] if code == 0 else failures(text) or list(failed)


def run(arguments: Sequence[str]) -> int:
    """Run all lots; returns 0 if none failed and some test ran."""
    began = time.monotonic()
    total: Counter[str] = Counter()
    codes: list[int] = []
    failed: list[str] = []
    for text, code in run_lots(arguments):
        print(text, flush=True)
        total += summary(text)
        failed += failures(text)
        codes.append(code)
    bad = [code for code in codes if code not in (0, NOTHING_COLLECTED)]
    if 0 < len(failed) <= FEW and set(bad) == {FAILED}:
        still = again(failed, arguments)
        steady = [name for name in failed if name not in still]
        total["failed"], total["error"], total["unsteady"] = len(still), 0, len(steady)
        bad = bad if still else []
        if steady:
            print(f"Unsteady, look at them: {', '.join(steady)}", flush=True)
    print(closing_line(+total, time.monotonic() - began), flush=True)
    return bad[0] if bad else (0 if 0 in codes or failed else NOTHING_COLLECTED)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
