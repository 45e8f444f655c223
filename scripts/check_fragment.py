"""Fail when the source changed since the last release and ``changes/`` says nothing about it.

Also checks the fragments themselves: a known kind in the name and some text inside. Outside a git
checkout (an unpacked source distribution) only the fragments are checked.
"""

import re
import subprocess
import sys
from pathlib import Path

KINDS = ("added", "changed", "fixed", "removed", "security")
_NAME = re.compile(rf"[a-z0-9][a-z0-9-]*\.(?:{'|'.join(KINDS)})\.md")


def problems(root: Path) -> list[str]:
    """What is wrong with the fragments of the checkout at `root`; empty if nothing is."""
    fragments = [file for file in sorted((root / "changes").iterdir()) if file.name != "README.md"]
    found = [
        f"changes/{file.name}: name it <what>.<kind>.md, the kind one of {', '.join(KINDS)}"
        for file in fragments
        if not _NAME.fullmatch(file.name)
    ]
    found += [f"changes/{file.name}: is empty" for file in fragments if not file.read_text().strip()]
    if not fragments and _source_changed(root):
        found.append("src/ changed since the last release, and changes/ has no fragment: see changes/README.md")
    return found


def _source_changed(root: Path) -> bool:
    inside = _git(root, "rev-parse", "--is-inside-work-tree")
    if inside is None:
        return False
    tag = _git(root, "describe", "--tags", "--abbrev=0", "--match", "v*")
    if tag is None:
        return bool(_git(root, "ls-files", "--cached", "--others", "--exclude-standard", "src"))
    new = _git(root, "ls-files", "--others", "--exclude-standard", "src")
    return bool(_git(root, "diff", "--name-only", tag, "--", "src") or new)


def _git(root: Path, *arguments: str) -> str | None:
    """Standard output of a git command, or None if it failed or there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Print the problems to standard error; returns 1 if there are any."""
    found = problems(Path(__file__).parent.parent)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
