"""The change-fragment check: silent when all is well, and seeing each way in which it is not."""

import subprocess
from pathlib import Path

import pytest

from scripts.check_fragment import problems


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A checkout whose only commit is release v1."""
    for folder in ("src", "changes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    (tmp_path / "changes" / "README.md").write_text("how to\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "v1")
    return tmp_path


def test_nothing_changed_since_the_release(released: Path) -> None:
    assert problems(released) == []


@pytest.mark.parametrize("file", ["a.py", "new.py"])
def test_a_changed_or_new_source_file_needs_a_fragment(released: Path, file: str) -> None:
    (released / "src" / file).write_text("a = 2\n")
    assert "no fragment" in problems(released)[0]
    (released / "changes" / "a-is-two.changed.md").write_text("a is two now.\n")
    assert problems(released) == []


def test_before_the_first_release_all_source_is_new(released: Path) -> None:
    git(released, "tag", "-d", "v1")
    assert "no fragment" in problems(released)[0]


def test_outside_git_only_the_fragments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "changes").mkdir()
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text"), [("a.improved.md", "x"), ("A b.added.md", "x"), ("a.md", "x"), ("a.fixed.md", " ")]
)
def test_malformed_fragments(released: Path, name: str, text: str) -> None:
    (released / "changes" / name).write_text(text)
    assert len(problems(released)) == 1
